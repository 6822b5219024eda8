"""Sample a model's answers to benchmark questions with vLLM, judge them, and write a report.

    python eval/generate_vllm.py --model_path MODEL --input_file id.parquet 'ood/*.parquet' --output_file OUT.jsonl

OUT.jsonl has one line per sample, OUT.run.json says how it was made, and OUT.report.md, .json and .html hold the
results. While it runs, finished samples are in OUT.jsonl.partial: after a kill, the same command generates what is
missing, and the result is that of an uninterrupted run. Each sample has its own seed, recorded with it.

Runs on the GPUs of the machine, else on the CPU; nothing has to be set in the environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: only this folder is on the import path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eval import arguments, generation, model_files, question_files
from eval.arguments import Settings
from eval.generation import Prompt, Request, Response
from eval.partial_file import PartialFile, differences, write_whole
from eval.question_files import Question
from eval.templates import TEMPLATES

THINK = "<think>\n"


@dataclass(frozen=True)
class Inputs:
    """What the flags name, found and read: the question files, the model's folder, the distinct questions."""

    files: list[Path]
    model: Path
    questions: list[Question]


@dataclass(frozen=True)
class FinishedRun:
    """The lines of the output file, and the record of how they were made."""

    rows: list[dict[str, Any]]
    record: dict[str, Any]


def main(command_line: Sequence[str] | None = None) -> None:
    """Run it; an error ends with one line on stderr and status 2."""
    settings = arguments.read(command_line, __doc__)
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
    inputs = read_inputs(settings)
    print(describe(settings, inputs.questions), flush=True)

    from eval import run_facts, sampler

    tokenizer = load_tokenizer(inputs.model, settings.template)
    requests = plan(settings, inputs.questions, tokenizer)
    check_scoring(settings, requests)
    template_sha256 = TEMPLATES[settings.template].sha256(tokenizer)
    identity = run_facts.identity(settings, inputs.files, model_files.sha256(inputs.model), template_sha256)
    if settings.debug:
        print(f"the first prompt: {requests[0].prompt.text!r}", flush=True)
    previous = finished_run(settings, identity)
    if previous is not None and not settings.force_generate:
        record = {**previous.record, "settings": run_facts.settings_record(settings)}
        finish(settings, FinishedRun(previous.rows, record))
        return
    with PartialFile(partial_path(settings), identity, restart=settings.restart) as partial:
        sampler.generate_missing(settings, inputs.model, requests, partial)
        rows = [partial.rows[request.key] for request in requests]
        generated = run_facts.Generated(partial.started, partial.seconds, sum(row["tokens"] for row in rows))
        finish(settings, FinishedRun(rows, run_facts.record(settings, identity, generated)))
        partial.path.unlink()


def read_inputs(settings: Settings) -> Inputs:
    """What the flags name; ValueError or OSError, naming the flag, where something is missing or wrong."""
    files = question_files.expand(settings.input_file)
    model = model_files.find(settings.model_path)
    _make_writable(settings.output_file)
    questions = question_files.read(files, remove_system=settings.remove_system, limit=settings.question_limit)
    benchmarks = {question.benchmark for question in questions}
    for name, samples in settings.n.items():
        if name and name not in benchmarks:
            raise ValueError(f"--n={name}={samples}: no such benchmark in the input files")
    return Inputs(files, model, questions)


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

    def encode(question: Question) -> Prompt:
        try:
            text = template.render(question.messages, tokenizer)
        except ValueError as error:
            place = f"{question.input_file}: question {question.index} of {question.benchmark}"
            raise ValueError(f"--template={settings.template}: {place}: {error}") from error
        return Prompt(text, tuple(tokenizer(text, add_special_tokens=not template.chat).input_ids))

    return generation.plan(questions, settings.samples, settings.seed, encode)


def check_scoring(settings: Settings, requests: Sequence[Request]) -> None:
    """ValueError where judging could not work: before the first sample, not after the last."""
    if settings.skip_scoring:
        return
    from eval import grading, report  # noqa: F401 - the report's packages are seen to be there

    nothing = Response(place=0, text="", tokens=0, finish_reason="stop")
    grading.check([generation.row(request, nothing) for request in requests], oat=settings.add_oat_evaluate)


def finished_run(settings: Settings, identity: dict[str, Any]) -> FinishedRun | None:
    """The run whose output already exists; None if there is none.

    Raises:
        ValueError: it has other settings, and would be overwritten.
    """
    output = settings.output_file
    if settings.restart or not output.exists():
        return None
    if not run_path(settings).is_file():
        raise ValueError(f"--output_file={output}: exists, without {run_path(settings)}; --restart overwrites it")
    record = json.loads(run_path(settings).read_text())
    if other := differences(identity, record["identity"]):
        raise ValueError(f"--output_file={output}: holds a run with other settings ({other}); --restart overwrites it")
    with output.open(encoding="utf-8") as lines:
        return FinishedRun([json.loads(line) for line in lines], record)


def finish(settings: Settings, run: FinishedRun) -> None:
    """Judge the rows, unless that is to be skipped, and write output, run record and report, each as a whole."""
    output, rows = settings.output_file, run.rows
    if not settings.skip_scoring:
        from eval.grading import grade

        think = settings.add_think_before_answer or rows[0]["prompt"].endswith(THINK)
        rows = grade(
            rows,
            oat=settings.add_oat_evaluate,
            any_true=settings.any_true,
            require_think=think and not settings.no_split_think,
        )
    write_whole(run_path(settings), json.dumps(run.record, indent=2, ensure_ascii=False) + "\n")
    write_whole(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{output}: {len(rows)} samples", flush=True)
    if not settings.skip_scoring:
        from eval import report

        report.write(rows, run.record, output)


if __name__ == "__main__":
    main()
