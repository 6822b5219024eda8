"""Sample a model's answers to benchmark questions with vLLM, judge them, and write a report.

    exgrpo-eval generate --model_path MODEL --input_file id.parquet 'ood/*.parquet' \\
        --output_file OUT.jsonl

OUT.jsonl has one line per sample, OUT.run.json records how it was made, and OUT.report.md, .json
and .html have the results. During the run, finished samples are in OUT.jsonl.partial: after a kill,
the same command generates the missing samples, and the result is that of an uninterrupted run. Each
sample has its own seed, which is recorded.

Runs on the machine's GPUs, or on the CPU if there are none; no environment variables are required.
With --base_url a server generates; with --grade_only, responses of a file are graded.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exgrpo.console import printable, refused
from exgrpo_eval.generate import arguments, generation, model_files, question_files, served
from exgrpo_eval.generate.finished import (
    FinishedRun,
    chosen_reward,
    finish,
    finished_run,
    make_writable,
    partial_path,
)
from exgrpo_eval.generate.generation import Prompt, Request, Response
from exgrpo_eval.generate.partial_file import PartialFile
from exgrpo_eval.generate.question_files import Question
from exgrpo_eval.generate.served import Server
from exgrpo_eval.generate.settings import Settings
from exgrpo_eval.generate.templates import TEMPLATES
from exgrpo_eval.grade import response_files
from exgrpo_tools.chat_template import keeps_system
from exgrpo_tools.inspect.text import print_lines

SHOWN_SYSTEM = 100  # characters of a system message


@dataclass(frozen=True)
class Inputs:
    """The inputs that the flags name: the question files, the model's folder or server, the
    distinct questions.

    `remove_system`: whether the questions' system messages were left out.
    """

    files: list[Path]
    model: Path | Server
    questions: list[Question]
    remove_system: bool


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the evaluation; an error prints one line to stderr and exits with status 2."""
    if command_line is None:  # called as a command: ends like Ctrl-C, copies of the model included
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = arguments.read(command_line, __doc__)
    if not settings.debug:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    try:
        evaluate(settings)
    except KeyboardInterrupt:
        sys.exit("exgrpo-eval generate: stopped; the same command continues from here")
    except (ValueError, OSError, RuntimeError) as error:
        if settings.debug:
            raise
        refused("exgrpo-eval generate", error)


def evaluate(settings: Settings) -> None:
    """Check everything, generate the missing samples, judge and report."""
    if reward := chosen_reward(settings):  # a wrong one fails before anything is generated
        print_lines([f"Judged by the reward {reward.author} (--reward strict: by Math-Verify)"])
    if settings.grade_only:
        grade_file(settings, settings.grade_only)
        return
    inputs = read_inputs(settings)
    settings = replace(settings, remove_system=inputs.remove_system)
    print_lines(describe(settings, inputs.questions).split("\n"))

    from exgrpo_eval.generate import run_facts, sampler

    if isinstance(inputs.model, Server):
        requests = plan_served(settings, inputs.questions)
        template_sha256 = TEMPLATES[settings.template].sha256(None)
        model = served.identity(inputs.model)
    else:
        tokenizer = load_tokenizer(inputs.model, settings.template)
        requests = plan(settings, inputs.questions, tokenizer)
        template_sha256 = TEMPLATES[settings.template].sha256(tokenizer)
        model = run_facts.local_model(settings, model_files.sha256(inputs.model))
    check_scoring(settings, requests)
    identity = run_facts.identity(settings, inputs.files, model, template_sha256)
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
        generated = run_facts.Generated(
            partial.started, partial.seconds, sum(row["tokens"] for row in rows)
        )
        server = inputs.model if isinstance(inputs.model, Server) else None
        record = run_facts.record(settings, identity, generated, server)
        finish(
            settings,
            FinishedRun(rows, {"prompt": prompt_line(settings, inputs.questions), **record}),
        )
        partial.path.unlink()


def grade_file(settings: Settings, file: Path) -> None:
    """Grade the responses that another harness wrote, and report as for a run of this one."""
    from exgrpo_eval.generate import run_facts
    from exgrpo_eval.grade import grading

    responses = response_files.read(file, question_files.expand(settings.input_file))
    rows = responses.rows
    make_writable(settings.output_file)
    counts = Counter(row["benchmark"] for row in rows)
    prompt = f"Prompt: as in {file.name}, whose harness chose template and system message."
    print_lines([prompt, *responses.columns])
    print_lines(f"{name}: {count} responses of {file}" for name, count in counts.items())
    grading.check(rows)
    identity = {"grade_only": model_files.file_sha256(file)}
    finished_run(settings, identity)  # refuses to overwrite another run's output
    record = {"prompt": prompt, **run_facts.graded_record(settings, file, identity, rows)}
    graded = finish(settings, FinishedRun(rows, record))
    if said := response_files.agreement(responses.verdicts, graded):
        print(f"\n{said}")


def read_inputs(settings: Settings) -> Inputs:
    """Find and read the inputs; ValueError or OSError, naming the flag, if something is missing or
    wrong.
    """
    files = question_files.expand(settings.input_file)
    model = (
        served.find(settings) if settings.base_url else model_files.find(str(settings.model_path))
    )
    make_writable(settings.output_file)
    remove_system = settings.remove_system
    if remove_system is None:  # as released, but for a model that says how it was trained
        remove_system = (
            settings.template != "own" or isinstance(model, Server) or not keeps_system(model)
        )
    questions = question_files.read(
        files, remove_system=remove_system, limit=settings.question_limit
    )
    benchmarks = {question.benchmark for question in questions}
    for name, samples in settings.n.items():
        if name and name not in benchmarks:
            raise ValueError(f"--n={name}={samples}: no such benchmark in the input files")
    return Inputs(files, model, questions, remove_system)


def describe(settings: Settings, questions: Sequence[Question]) -> str:
    """A line on the prompt, then one for each benchmark, with its questions and samples per
    question.
    """
    lines = [prompt_line(settings, questions)]
    counts = Counter((question.benchmark, question.repeats) for question in questions)
    for (benchmark, repeats), count in counts.items():
        samples = settings.samples(benchmark, repeats)
        plural = "s" if samples > 1 else ""
        note = (
            f" (the file asks for {repeats}, by equal rows or extra_info.samples)"
            if repeats > 1
            else ""
        )
        lines.append(f"{printable(benchmark)}: {count} questions x {samples} sample{plural}{note}")
    return "\n".join(lines)


def prompt_line(settings: Settings, questions: Sequence[Question]) -> str:
    """Which template and which system message the questions are asked with; the first line of the
    report.
    """
    template = (
        "the model's chat template (own)"
        if settings.template == "own"
        else f"--template {settings.template}"
    )
    if any(question.left_out for question in questions):
        return (
            f"Prompt: {template}; the files' system messages are left out, as in the "
            "released evaluation. A model that "
            "was trained with them is asked with --remove_system False."
        )
    systems = {
        message["content"]
        for q in questions
        for message in q.messages
        if message["role"] == "system"
    }
    if not systems:
        return f"Prompt: {template}; the files have no system message."
    shown = " ".join(min(systems).split())
    shown = shown if len(shown) <= SHOWN_SYSTEM else f"{shown[:SHOWN_SYSTEM]} ..."
    others = f" and {len(systems) - 1} others" if len(systems) > 1 else ""
    return f'Prompt: {template}, with the files\' system message "{shown}"{others}.'


def load_tokenizer(folder: Path, template: str) -> Any:
    """The model's tokenizer.

    Raises:
        ValueError: it cannot be read, or lacks a required chat template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # a damaged file may cause any error
        raise ValueError(
            f"--model_path={folder}: its tokenizer cannot be loaded ({error})"
        ) from error
    if TEMPLATES[template].chat and not tokenizer.chat_template:
        raise ValueError(
            f"--template={template}: the model of --model_path={folder} has no chat template"
        )
    return tokenizer


def plan(settings: Settings, questions: Sequence[Question], tokenizer: Any) -> list[Request]:
    """The requests with tokenised prompts; a chat template adds its own special tokens, plain text
    gets the default.
    """
    template = TEMPLATES[settings.template]

    def encode(question: Question) -> Prompt:
        text = template.render(question.messages, tokenizer)
        return Prompt(text, tuple(tokenizer(text, add_special_tokens=not template.chat).input_ids))

    return _plan(settings, questions, encode)


def plan_served(settings: Settings, questions: Sequence[Question]) -> list[Request]:
    """The requests with prompts in the form that a server takes."""
    return _plan(
        settings, questions, lambda question: served.encode(TEMPLATES[settings.template], question)
    )


def _plan(
    settings: Settings, questions: Sequence[Question], encode: Callable[[Question], Prompt]
) -> list[Request]:
    def encode_or_name(question: Question) -> Prompt:
        try:
            return encode(question)
        except ValueError as error:
            place = f"{question.input_file}: question {question.index} of {question.benchmark}"
            raise ValueError(f"--template={settings.template}: {place}: {error}") from error

    return generation.plan(questions, settings.samples, settings.seed, encode_or_name)


def check_scoring(settings: Settings, requests: Sequence[Request]) -> None:
    """ValueError if judging cannot work, before the first sample instead of after the last."""
    if settings.skip_scoring:
        return
    from exgrpo_eval.grade import grading
    from exgrpo_eval.reports import command as report  # noqa: F401 - checks that the report's packages are installed

    nothing = Response(place=0, text="", tokens=0, finish_reason="stop")
    grading.check([generation.row(request, nothing) for request in requests])
