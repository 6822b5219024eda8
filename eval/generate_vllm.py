"""Sample a model's answers to benchmark questions with vLLM, judge them, and write a report.

    python eval/generate_vllm.py --model_path MODEL --input_file id.parquet 'ood/*.parquet' --output_file OUT.jsonl

OUT.jsonl has a line a sample, OUT.run.json says how it was made, and OUT.report.md, .json and .html say what came out.
While it runs, finished samples are in OUT.jsonl.partial: after a kill the same command does what is missing, and the
result is that of a run that was not interrupted. Each sample has its own seed, recorded with it.

Runs on the GPUs there are, else on the CPU; nothing has to be set in the environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import arguments
import generation
import model_files
import question_files
from arguments import Settings
from generation import Request, Response
from partial_file import PartialFile, differences, write_whole
from question_files import Question
from templates import TEMPLATES

THINK = "<think>\n"


def main(given: Sequence[str] | None = None) -> None:
    """Run it; what cannot work ends with one line on stderr and status 2."""
    settings = arguments.read(given, __doc__)
    if not settings.debug:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    try:
        evaluate(settings)
    except KeyboardInterrupt:
        sys.exit("generate_vllm.py: stopped; the same command goes on from here")
    except (ValueError, OSError, RuntimeError) as error:
        if settings.debug:
            raise
        print(f"generate_vllm.py: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def evaluate(settings: Settings) -> None:
    """Check everything, generate what is missing, judge and report."""
    files = question_files.expand(settings.input_file)
    folder = model_files.find(settings.model_path)
    _make_writable(settings.output_file)
    questions = question_files.read(files, remove_system=settings.remove_system, limit=settings.question_limit)
    unknown = [name for name in settings.n if name and name not in {question.benchmark for question in questions}]
    if unknown:
        raise ValueError(f"--n={unknown[0]}={settings.n[unknown[0]]}: no such benchmark in the input files")
    print(describe(settings, questions), flush=True)

    import run_facts
    import sampler

    tokenizer = load_tokenizer(folder, settings.template)
    requests = plan(settings, questions, tokenizer)
    check_scoring(settings, requests)
    template_sha256 = TEMPLATES[settings.template].sha256(tokenizer)
    identity = run_facts.identity(settings, files, model_files.sha256(folder), template_sha256)
    if settings.debug:
        print(f"the first prompt: {requests[0].prompt!r}", flush=True)
    finished = finished_run(settings, identity)
    if finished is not None and not settings.force_generate:
        rows, run = finished
        finish(settings, rows, {**run, "settings": run_facts.settings_record(settings)})
        return
    with PartialFile(partial_path(settings), identity, restart=settings.restart) as partial:
        sampler.generate_missing(settings, folder, requests, partial)
        rows = [partial.rows[request.key] for request in requests]
        tokens = sum(row["tokens"] for row in rows)
        run = run_facts.record(
            settings, identity, started=partial.started, seconds=partial.seconds, generated_tokens=tokens
        )
        finish(settings, rows, run)
        partial.path.unlink()


def partial_path(settings: Settings) -> Path:
    """Where the samples of an unfinished run are."""
    return settings.output_file.with_name(settings.output_file.name + ".partial")


def run_path(settings: Settings) -> Path:
    """Where it is said how the output was made."""
    return settings.output_file.with_suffix(".run.json")


def _make_writable(output: Path) -> None:
    """The folder of the output file, or ValueError."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output_file={output}: {error.strerror}") from error
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        raise ValueError(f"--output_file={output}: must be a file that can be written")


def describe(settings: Settings, questions: Iterable[Question]) -> str:
    """A line for each benchmark: questions, and how many samples of each."""
    lines, counts = [], Counter((question.benchmark, question.repeats) for question in questions)
    for (benchmark, repeats), count in counts.items():
        samples = settings.samples(benchmark, repeats)
        held = f" (the file holds each {repeats} times: one question, not {repeats})" if repeats > 1 else ""
        lines.append(f"{benchmark}: {count} questions x {samples} sample{'s' * (samples > 1)}{held}")
    return "\n".join(lines)


def load_tokenizer(folder: Path, template: str) -> Any:
    """The model's tokenizer.

    Raises:
        ValueError: it cannot be read, or has no chat template where one is needed.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # whatever a damaged file makes a tokenizer library raise
        raise ValueError(f"--model_path={folder}: its tokenizer cannot be loaded ({error})") from error
    if TEMPLATES[template].chat and not tokenizer.chat_template:
        raise ValueError(f"--template={template}: the model of --model_path={folder} has no chat template")
    return tokenizer


def plan(settings: Settings, questions: Sequence[Question], tokenizer: Any) -> list[Request]:
    """The requests, their prompts as tokens; a chat template brings its own special tokens, plain text does not."""
    template = TEMPLATES[settings.template]

    def encode(question: Question) -> tuple[str, tuple[int, ...]]:
        try:
            prompt = template.render(question.messages, tokenizer)
        except ValueError as error:
            place = f"{question.input_file}: question {question.index} of {question.benchmark}"
            raise ValueError(f"--template={settings.template}: {place}: {error}") from error
        return prompt, tuple(tokenizer(prompt, add_special_tokens=not template.chat).input_ids)

    return generation.plan(questions, settings.samples, settings.seed, encode)


def check_scoring(settings: Settings, requests: Sequence[Request]) -> None:
    """ValueError where judging could not work; said now, not after the last sample."""
    if settings.skip_scoring:
        return
    import grading
    import report  # noqa: F401

    nothing = Response(place=0, text="", tokens=0, finish_reason="stop")
    grading.check([generation.row(request, nothing) for request in requests], oat=settings.add_oat_evaluate)


def finished_run(settings: Settings, identity: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """Rows and run record of an output that is there already; None if there is none.

    Raises:
        ValueError: it is of a run with other settings, which would be overwritten.
    """
    output = settings.output_file
    if settings.restart or not output.exists():
        return None
    if not run_path(settings).is_file():
        raise ValueError(f"--output_file={output}: exists, without {run_path(settings)}; --restart overwrites it")
    run = json.loads(run_path(settings).read_text())
    if other := differences(identity, run["identity"]):
        raise ValueError(f"--output_file={output}: holds a run with other settings ({other}); --restart overwrites it")
    with output.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines], run


def finish(settings: Settings, rows: list[dict[str, Any]], run: dict[str, Any]) -> None:
    """Judge the rows, unless that is to be skipped, and write output, run record and report, each as a whole."""
    output = settings.output_file
    if not settings.skip_scoring:
        from grading import grade

        think = settings.add_think_before_answer or rows[0]["prompt"].endswith(THINK)
        rows = grade(
            rows,
            oat=settings.add_oat_evaluate,
            any_true=settings.any_true,
            require_think=think and not settings.no_split_think,
        )
    write_whole(run_path(settings), json.dumps(run, indent=2, ensure_ascii=False) + "\n")
    write_whole(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{output}: {len(rows)} samples", flush=True)
    if not settings.skip_scoring:
        import report

        report.write(rows, run, output)


if __name__ == "__main__":
    main()
