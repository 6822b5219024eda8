"""The command line of generate_vllm.py: the released script's flags with its defaults, and a few of our own."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from eval.templates import TEMPLATES

MANY = {"aime": 32, "aime25": 32, "amc": 32}  # samples per question without --n; 1 elsewhere
DEBUG_QUESTIONS = 10  # a benchmark, under --debug


@dataclass(frozen=True)
class Settings:
    """Every flag of one run. `n` maps a benchmark to its samples per question, "" standing for the others."""

    model_path: str
    input_file: list[str]
    output_file: Path
    template: str
    remove_system: bool
    temperature: float
    top_p: float
    max_tokens: int
    n: dict[str, int]
    add_oat_evaluate: bool
    any_true: bool
    force_generate: bool
    add_think_before_answer: bool
    no_split_think: bool
    skip_scoring: bool
    debug: bool
    seed: int
    limit: int | None
    restart: bool
    max_num_seqs: int | None
    tensor_parallel_size: int | None
    data_parallel_size: int | None
    gpu_memory_utilization: float
    dtype: str

    def __post_init__(self) -> None:
        """ValueError, naming the flag and its value, at the first that cannot work."""
        need(self.template in TEMPLATES, "template", self.template, f"must be one of {', '.join(TEMPLATES)}")
        need(0 <= self.temperature < math.inf, "temperature", self.temperature, "must be 0 (greedy) or more")
        need(0 < self.top_p <= 1, "top_p", self.top_p, "must be above 0 and at most 1")
        need(0 < self.gpu_memory_utilization <= 1, "gpu_memory_utilization", self.gpu_memory_utilization, "0 to 1")
        for name in ("max_tokens", "limit", "max_num_seqs", "tensor_parallel_size", "data_parallel_size"):
            value = getattr(self, name)
            need(value is None or value >= 1, name, value, "must be 1 or more")
        for benchmark, samples in self.n.items():
            value = f"{benchmark}={samples}" if benchmark else str(samples)
            need(samples >= 1, "n", value, "must be 1 or more samples a question")
            need(samples == 1 or self.temperature > 0, "n", value, "must be 1 at --temperature 0: all would be alike")
        need(not self.any_true or self.add_oat_evaluate, "any_true", True, "needs --add_oat_evaluate")
        need(self.seed >= 0, "seed", self.seed, "must be 0 or more")
        suffix = self.output_file.suffix
        need(suffix == ".jsonl", "output_file", self.output_file, "must end in .jsonl")

    @property
    def question_limit(self) -> int | None:
        """Questions to take of each benchmark; None for all."""
        return self.limit or (DEBUG_QUESTIONS if self.debug else None)

    @property
    def n_text(self) -> str:
        """--n as it is written on a command line."""
        return ",".join(f"{name}={count}" if name else str(count) for name, count in self.n.items()) or "auto"

    def samples(self, benchmark: str, repeats: int) -> int:
        """Samples of each distinct question of a benchmark whose file holds it `repeats` times."""
        chosen = self.n.get(benchmark, self.n.get(""))
        if chosen is not None:
            return chosen
        if self.temperature == 0:
            return 1
        return repeats if repeats > 1 else MANY.get(benchmark, 1)


def need(holds: bool, name: str, value: object, rule: str) -> None:
    """ValueError ``--name=value: rule`` unless it holds."""
    if not holds:
        raise ValueError(f"--{name}={value}: {rule}")


def boolean(text: str) -> bool:
    """A flag's value, as the released command lines write it: ``--remove_system True``."""
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r}: must be True or False")
    return known[text.lower()]


def samples_by_benchmark(text: str) -> dict[str, int]:
    """``auto``, ``8``, or ``aime=32,math=4`` (the others as auto) as the mapping of `Settings.n`."""
    if text == "auto":
        return {}
    counts = {}
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        if not number.strip().lstrip("-").isdigit():
            raise argparse.ArgumentTypeError(f"{text!r}: must be a number, auto, or such as aime=32,math=4")
        counts[name.strip()] = int(number)
    return counts


def number_or_auto(text: str) -> int | None:
    """``auto`` as None, else the number."""
    return None if text == "auto" else int(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def read(arguments: Sequence[str] | None, description: str | None) -> Settings:
    """The settings of a command line; what cannot work ends the process with one line and status 2."""
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    _add_what(parser)
    _add_sampling(parser)
    _add_scoring(parser)
    _add_machine(parser)
    flags = vars(parser.parse_args(arguments))
    try:
        return Settings(**flags)
    except ValueError as error:
        parser.error(str(error))


def _flag(group: Any, name: str, default: bool, text: str) -> None:
    group.add_argument(name, nargs="?", type=boolean, const=True, default=default, metavar="True|False", help=text)


def _add_what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is asked")
    add = group.add_argument
    add("--model_path", required=True, help="folder of the model in the Hugging Face format, or its name on the hub")
    add(
        "--input_file",
        required=True,
        nargs="+",
        help="parquet files in verl's schema, or globs of them in quotes; all are answered in one load of the model. "
        "A question that a file repeats is asked once, with as many samples (see --n)",
    )
    add("--output_file", required=True, type=Path, help="jsonl to write; the report appears beside it")
    names = f"prompt format: {', '.join(TEMPLATES)}; own is the model's chat template (%(default)s)"
    add("--template", default="own", help=names)
    _flag(group, "--remove_system", True, "drop a system message where a question has one (%(default)s)")
    add("--limit", type=int, metavar="N", help="the first N questions of each benchmark (all)")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("sampling").add_argument
    add("--temperature", type=float, default=0.6, help="0 is greedy (%(default)s)")
    add("--top_p", type=float, default=1.0, help="nucleus that is sampled from (%(default)s)")
    add("--max_tokens", type=int, default=8192, help="longest response; one cut off there is wrong (%(default)s)")
    add(
        "--n",
        type=samples_by_benchmark,
        default="auto",
        help="samples of each distinct question: a number, or by benchmark, aime=32,math=4, the others as auto. auto: "
        "as often as the file repeats the question; where it does not, 32 for aime, aime25 and amc, else 1 (auto)",
    )
    add("--seed", type=int, default=0, help="a sample's own seed follows from it, the question and its number (0)")


def _add_scoring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scoring")
    _flag(group, "--add_oat_evaluate", False, "judge by a second, independent grader too (%(default)s)")
    _flag(group, "--any_true", False, "with it: right is what either grader calls right (%(default)s)")
    _flag(
        group,
        "--add_think_before_answer",
        False,
        "read each response as if it began with <think>: what follows </think> counts, and without one it is wrong; so "
        "it is anyway where the prompt ends with <think> (%(default)s)",
    )
    _flag(group, "--no_split_think", False, "the whole response counts, thought and all (%(default)s)")
    _flag(group, "--skip_scoring", False, "write the responses without verdicts and report (%(default)s)")
    _flag(
        group,
        "--force_generate",
        True,
        "False: where OUTPUT_FILE is finished, judge its responses again and load no model; True: generate them anew. "
        "An interrupted run is continued either way (%(default)s)",
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    add = group.add_argument
    _flag(group, "--restart", False, "begin anew: discard what an earlier run with this output left (%(default)s)")
    _flag(
        group,
        "--debug",
        False,
        f"{DEBUG_QUESTIONS} questions a benchmark, vLLM's own log, a prompt shown (%(default)s)",
    )
    add(
        "--max_num_seqs",
        type=int,
        metavar="N",
        help="responses generated at a time (as vLLM has it). With 1 a response is the same to the bit on one machine, "
        "whatever else is generated; in larger batches rounding depends on the batch, and a few responses may differ",
    )
    for name, meaning in (
        ("--tensor_parallel_size", "GPUs that share one copy of the model (auto: as few as hold it)"),
        ("--data_parallel_size", "copies of the model (auto: as many as the GPUs there are hold; 1 on a CPU)"),
    ):
        add(name, type=number_or_auto, default=None, metavar="N|auto", help=meaning)
    add("--gpu_memory_utilization", type=float, default=0.9, help="share of a GPU's memory vLLM may take (%(default)s)")
    add(
        "--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32"], help="of the model (%(default)s)"
    )
