r"""Write valid.id.parquet and valid.ood.parquet, the questions of the nine benchmarks in verl's parquet schema.

    python data/prepare_eval.py --output_dir data
    python data/prepare_eval.py --output_dir data --benchmarks math arc_c --local math=math500.jsonl

By default each benchmark comes from the Hugging Face hub (below); --local NAME=FILE reads a .parquet, .jsonl, .json
(one row per line) or .csv file with the same columns instead. From a parquet file in verl's schema, such as the
released ones, the rows whose data_source is NAME are copied, with prompts, answers and repetitions unchanged.

Answers are normalised: 142.0 becomes 142, 4.5e33 becomes 4.5\times10^{33}, np.arcsin(...) an \arcsin. Each question is
written once; eval/generate_vllm.py --n sets the number of samples. GPQA's choices are shuffled in an order that depends
only on the question. GPQA's authors ask not to republish it, and require consent on its page.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: only this folder is on the import path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.sources import Row, Source, open_dataset, open_file
from data.texts import answer_text, question_text
from data.verl_rows import SYSTEM_PROMPT, fail, make_row, read_system_prompt, write_parquet
from exgrpo.experience.question_id import question_id
from exgrpo.gold_answers import clean

LETTERS = "ABCDEFGHIJ"
VERL_COLUMNS = ("data_source", "prompt", "reward_model")
GPQA_COLUMNS = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
GPQA_PROMPT = (
    "Answer the following multiple choice question. Think step by step, and end with a line of the form "
    "'ANSWER: $LETTER' (without quotes), where LETTER is one of ABCD."
)

Pair = tuple[str, str]  # question, answer


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark is, and how to read a question and an answer from one of its rows."""

    hub: str
    subset: str | None
    split: str
    columns: tuple[str, ...]
    read: Callable[[Row], Pair]
    file: str = "valid.id.parquet"


def free_form(question: str, answer: str) -> Callable[[Row], Pair]:
    """A reader for a question with a LaTeX answer; several answers are joined with commas."""

    def read(row: Row) -> Pair:
        answers = row[answer]
        final = answer_text(", ".join(answers) if isinstance(answers, list) else answers)
        return question_text(row[question]), clean(final)

    return read


def lettered(question: str, choices: Iterable[tuple[str, str]]) -> str:
    """A question followed by its choices, as "A) ..."."""
    return question.strip() + "\n\n" + "\n".join(f"{label}) {text.strip()}" for label, text in choices)


def read_arc(row: Row) -> Pair:
    """ARC's choices have their own labels; some are numbers."""
    choices = list(zip(row["choices"]["label"], row["choices"]["text"], strict=True))
    if row["answerKey"] not in row["choices"]["label"]:
        return row["question"], ""
    return lettered(row["question"], choices), row["answerKey"]


def read_gpqa(row: Row) -> Pair:
    """GPQA lists the correct choice first; the order is shuffled with the question as seed."""
    question, *choices = (row[column].strip() for column in GPQA_COLUMNS)
    order = random.Random(question_id(question)).sample(range(len(choices)), len(choices))
    prompt = lettered(question, zip(LETTERS, (choices[place] for place in order), strict=False))
    return f"{GPQA_PROMPT}\n\n{prompt}", LETTERS[order.index(0)]


def read_mmlu_pro(row: Row) -> Pair:
    """MMLU-Pro has up to ten choices."""
    answer = row["answer"] if row["answer"] in LETTERS[: len(row["options"])] else ""
    return lettered(row["question"], zip(LETTERS, row["options"], strict=False)), answer


def _ood(hub: str, subset: str | None, split: str, columns: tuple[str, ...], read: Callable[[Row], Pair]) -> Benchmark:
    return Benchmark(hub, subset, split, columns, read, file="valid.ood.parquet")


PROBLEM, QUESTION, FINAL = ("problem", "answer"), ("question", "answer"), ("question", "final_answer")
BENCHMARKS = {
    "aime": Benchmark("HuggingFaceH4/aime_2024", None, "train", PROBLEM, free_form(*PROBLEM)),
    "aime25": Benchmark("math-ai/aime25", None, "test", PROBLEM, free_form(*PROBLEM)),
    "amc": Benchmark("AI-MO/aimo-validation-amc", None, "train", PROBLEM, free_form(*PROBLEM)),
    "math": Benchmark("HuggingFaceH4/MATH-500", None, "test", PROBLEM, free_form(*PROBLEM)),
    "minerva": Benchmark("math-ai/minervamath", None, "test", QUESTION, free_form(*QUESTION)),
    "olympiad_bench": Benchmark("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train", FINAL, free_form(*FINAL)),
    "arc_c": _ood("allenai/ai2_arc", "ARC-Challenge", "test", ("question", "choices", "answerKey"), read_arc),
    "gpqa": _ood("Idavidrein/gpqa", "gpqa_diamond", "train", GPQA_COLUMNS, read_gpqa),
    "mmlu_pro": _ood("TIGER-Lab/MMLU-Pro", None, "test", ("question", "options", "answer"), read_mmlu_pro),
}


def rows_of(name: str, source: Source, system: str | None) -> list[dict[str, Any]]:
    """A benchmark's rows in verl's schema; rows of a source that is already in it are copied unchanged.

    Raises:
        ValueError: the source lacks a column, or a row lacks its question or answer.
    """
    if all(column in source.columns for column in VERL_COLUMNS):
        own_rows = [dict(row) for row in source.rows(source.columns) if row["data_source"] == name]
        if not own_rows:
            raise ValueError(f"{source.name}: has no row with data_source {name}")
        return own_rows
    benchmark = BENCHMARKS[name]
    missing = [column for column in benchmark.columns if column not in source.columns]
    if missing:
        raise ValueError(f"{source.name}: no column {missing[0]!r} ({name}); it has {', '.join(source.columns)}")
    rows = []
    for index, row in enumerate(source.rows(benchmark.columns)):
        try:
            question, answer = benchmark.read(row)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{source.name}: row {index} is not in the format of {name}: {error!r}") from error
        if not question or not answer:
            raise ValueError(f"{source.name}: row {index} has no {'answer' if question else 'question'} ({name})")
        rows.append(make_row(question, answer, index, data_source=name, split="test", system=system))
    if not rows:
        raise ValueError(f"{source.name}: no rows")
    return rows


def in_one_schema(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with consistent types: a field of extra_info that has several types becomes a string in all rows."""
    types: dict[str, set[type]] = {}
    for row in rows:
        for key, value in (row.get("extra_info") or {}).items():
            types.setdefault(key, set()).add(type(value))
    mixed = [key for key, types_of_key in types.items() if len(types_of_key - {type(None)}) > 1]
    if not mixed:
        return rows
    for row in rows:
        extra = row.get("extra_info") or {}
        as_text = {key: str(extra[key]) for key in mixed if extra.get(key) is not None}
        row["extra_info"] = {**extra, **as_text}
    return rows


def name_and_path(text: str) -> tuple[str, Path]:
    """``NAME=FILE``."""
    name, equals, path = text.partition("=")
    if not equals or not path or name not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"{text!r}: must be NAME=FILE, NAME one of {', '.join(BENCHMARKS)}")
    return name, Path(path)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    lines = []
    for name, benchmark in BENCHMARKS.items():
        subset = f" ({benchmark.subset})" if benchmark.subset else ""
        lines.append(f"  {name:15} {benchmark.hub}{subset}, {benchmark.split}: {', '.join(benchmark.columns)}")
    hub = "\n".join(lines)
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"benchmarks, their data sets on the hub and the columns used:\n{hub}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for the two files")
    parser.add_argument(
        "--benchmarks", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), help="default: all nine"
    )
    parser.add_argument(
        "--local", type=name_and_path, nargs="+", action="extend", default=[], metavar="NAME=FILE", help="files to read"
    )
    parser.add_argument(
        "--system_prompt_file", default=str(SYSTEM_PROMPT), help="text of the system message; 'none' for no message"
    )
    options = parser.parse_args(arguments)
    unused = [name for name, _ in options.local if name not in options.benchmarks]
    if unused:
        parser.error(f"--local {unused[0]}=...: must be among --benchmarks {' '.join(options.benchmarks)}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Read all benchmarks, then write the files."""
    options = parse_arguments(arguments)
    files: dict[str, list[dict[str, Any]]] = {}
    try:
        system, local = read_system_prompt(options.system_prompt_file), dict(options.local)
        for name in options.benchmarks:
            benchmark = BENCHMARKS[name]
            if name in local:
                source = open_file(local[name])
            else:
                source = open_dataset(benchmark.hub, benchmark.split, benchmark.subset)
            rows = rows_of(name, source, system)
            print(f"{name}: {len(rows)} rows of {source.name}", flush=True)
            files.setdefault(benchmark.file, []).extend(rows)
        for file, rows in files.items():
            write_parquet(in_one_schema(rows), options.output_dir / file)
            print(f"{options.output_dir / file}: {len(rows)} rows")
    except (ValueError, OSError, csv.Error) as error:
        sys.exit(fail("prepare_eval.py", error))


if __name__ == "__main__":
    main()
