"""The command line of exgrpo-eval generate: the released script's flags with its defaults, and a
few more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from exgrpo_eval.generate.settings import DEBUG_QUESTIONS, Settings
from exgrpo_eval.generate.templates import TEMPLATES
from exgrpo_tools import reward_option


def boolean(text: str) -> bool:
    """A flag's value, in the form of the released command lines: ``--remove_system True``."""
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r}: must be True or False")
    return known[text.lower()]


def samples_by_benchmark(text: str) -> dict[str, int]:
    """Parse ``auto``, ``8``, or ``aime=32,math=4`` (auto for the others) into the mapping of
    `Settings.n`.
    """
    if text == "auto":
        return {}
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, separator, number = (piece.strip() for piece in part.rpartition("="))
        if not number.lstrip("-").isdigit() or (separator and not name.strip("= ")):
            raise argparse.ArgumentTypeError(
                f"{text!r}: must be a number, auto, or such as aime=32,math=4"
            )
        if name in counts:
            raise argparse.ArgumentTypeError(
                f"{text!r}: must have one number for {name or 'all others'}"
            )
        counts[name] = int(number)
    return counts


def number_or_auto(text: str) -> int | None:
    """None for ``auto``, otherwise the number."""
    return None if text == "auto" else int(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with the message in one line, without the usage."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def read(arguments: Sequence[str] | None, description: str | None) -> Settings:
    """The settings of a command line; a wrong one ends the process with one line and status 2."""
    parser = _Parser(
        "exgrpo-eval generate",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_what(parser)
    _add_server(parser)
    _add_sampling(parser)
    _add_scoring(parser)
    _add_machine(parser)
    flags = vars(parser.parse_args(arguments))
    if (output_eval := flags.pop("output_eval")) is not None:
        print(
            f"--output_eval={output_eval}: not written, as in the release, which takes the "
            "flag and never uses it"
        )
    try:
        return Settings(**flags)
    except ValueError as error:
        parser.error(str(error))


def _flag(group: Any, name: str, default: bool | None, text: str) -> None:
    group.add_argument(
        name, nargs="?", type=boolean, const=True, default=default, metavar="True|False", help=text
    )


def _add_what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and questions")
    add = group.add_argument
    add(
        "--model_path",
        help="folder of the model in the Hugging Face format, or its name on the hub; with "
        "--grade_only the model's "
        "name in the report",
    )
    add(
        "--input_file",
        default=[],
        nargs="+",
        help="parquet files in verl's schema, or quoted globs of them; the model is loaded once "
        "for all of them. A "
        "question that a file repeats is asked once, with as many samples (see --n)",
    )
    add(
        "--output_file",
        required=True,
        type=Path,
        help="jsonl file to write; the report is written beside it",
    )
    names = f"prompt format: {', '.join(TEMPLATES)}; own is the model's chat template (%(default)s)"
    add("--template", default="own", help=names)
    _flag(
        group,
        "--remove_system",
        None,
        "drop the questions' system messages (True as released; False for a model whose "
        "chat template says that it is "
        "one of exgrpo-data thinking-copy, which is trained with them)",
    )
    add("--limit", type=int, metavar="N", help="the first N questions of each benchmark (all)")
    add(
        "--grade_only",
        type=Path,
        metavar="FILE",
        help="generate nothing: grade the responses in a jsonl or parquet file of another "
        "harness or of the release, "
        "and write the report (docs/evaluation.md lists the columns); --input_file then "
        "names each row's benchmark",
    )


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("a server instead of a local engine").add_argument
    add(
        "--base_url",
        metavar="URL",
        help="address of a server with OpenAI's interface, http://HOST:PORT/v1",
    )
    add(
        "--served_model",
        metavar="NAME",
        help="the model's name on the server (default: the only one that it serves)",
    )
    add(
        "--api_key_env",
        metavar="VAR",
        help="environment variable with the key (default: OPENAI_API_KEY, if set)",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("sampling").add_argument
    add("--temperature", type=float, default=0.6, help="0 is greedy (%(default)s)")
    add("--top_p", type=float, default=1.0, help="nucleus sampling (%(default)s)")
    add("--max_tokens", type=int, default=8192, help="longest response (%(default)s)")
    add(
        "--n",
        type=samples_by_benchmark,
        default="auto",
        help="samples per distinct question: a number, or by benchmark, aime=32,math=4, and "
        "auto for the others. auto: "
        "as many as the file has repeats of the question or asks for; otherwise as "
        "eval/benchmarks/NAME.yaml says "
        "(32 for aime, aime25, amc), or 1 (auto)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="a sample's seed depends on this, the question and the sample's number (0)",
    )


def _add_scoring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scoring")
    reward_option.add_to(group)
    _flag(
        group, "--add_oat_evaluate", False, "judge by Oat's grader, as the paper does (%(default)s)"
    )
    _flag(
        group,
        "--any_true",
        False,
        "with it: right is what Oat's grader or Math-Verify accepts (%(default)s)",
    )
    _flag(
        group,
        "--add_think_before_answer",
        False,
        "treat each response as if it began with <think>: the text after </think> is "
        "judged, and a response without it "
        "is wrong; always on if the prompt ends with <think> (%(default)s)",
    )
    _flag(
        group,
        "--no_split_think",
        False,
        "judge the whole response, including its thought (%(default)s)",
    )
    group.add_argument(
        "--output_eval", metavar="FILE", help="accepted and not used, as in the release"
    )
    _flag(
        group,
        "--skip_scoring",
        False,
        "write the responses without verdicts and report (%(default)s)",
    )
    _flag(
        group,
        "--force_generate",
        True,
        "False: if OUTPUT_FILE is finished, judge its responses again without loading the "
        "model; True: generate them "
        "again. An interrupted run is continued in both cases (%(default)s)",
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    add = group.add_argument
    _flag(
        group,
        "--restart",
        False,
        "start over: discard the results of an earlier run with this output (%(default)s)",
    )
    _flag(
        group,
        "--debug",
        False,
        f"{DEBUG_QUESTIONS} questions per benchmark, show vLLM's log and a prompt (%(default)s)",
    )
    add(
        "--max_num_seqs",
        type=int,
        metavar="N",
        help="responses generated at a time (default: vLLM's; 64 with a server). With 1 a "
        "response is bit-identical on "
        "one machine, regardless of the others; in larger batches rounding depends on the "
        "batch, and a few responses "
        "may differ",
    )
    for name, meaning in (
        (
            "--tensor_parallel_size",
            "GPUs that share one copy of the model (auto: as few as it needs)",
        ),
        (
            "--data_parallel_size",
            "copies of the model (auto: as many as fit on the GPUs; 1 on a CPU)",
        ),
    ):
        add(name, type=number_or_auto, default=None, metavar="N|auto", help=meaning)
    add(
        "--gpu_memory_utilization",
        type=float,
        default=0.9,
        help="share of a GPU's memory for vLLM (%(default)s)",
    )
    add(
        "--dtype",
        default="auto",
        choices=["auto", "bfloat16", "float16", "float32"],
        help="of the model (%(default)s)",
    )
