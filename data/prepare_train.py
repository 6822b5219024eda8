"""Write a training file in verl's parquet schema from a dataset's questions and answers; other
columns are ignored.

    exgrpo-data train --dataset_name Elliott/Openr1-Math-46k-8192 --output_file data/openr1.parquet
    exgrpo-data train --input_file questions.jsonl --output_file train.parquet

A row's own system message is kept, as in the released run; a row without one gets that of
system_prompt.txt. --system_prompt_file gives every row another one, or none.

Rows without a question or an answer are dropped. So are repeated questions, which would share one
entry of the experience pool: all but the first if their answers agree, and all of them if the
answers conflict, since it is unknown which is correct. Dropped rows are counted and some are shown.
The file is written atomically.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from exgrpo.console import in_one_line, refused
from exgrpo.experience.question_id import question_id
from exgrpo_data.verl_rows import SYSTEM_PROMPT, make_row, read_system_prompt, write_parquet
from exgrpo_tools.sources import Source, lookup, open_dataset, open_file
from exgrpo_tools.texts import answer_text, question_text, system_text

QUESTION_KEYS = ("question", "problem", "prompt", "query", "instruction")
ANSWER_KEYS = ("answer", "reward_model.ground_truth", "ground_truth", "final_answer", "solution")
SHOWN = 3  # examples of each kind of dropped row


class Item(NamedTuple):
    """The parts of a row, each empty if the row has none; ``system`` is the row's own system
    message.
    """

    question: str
    answer: str
    system: str


@dataclass
class Report:
    """How many rows were read, kept and dropped; ``examples`` are row numbers of the source, from
    0.
    """

    read: int = 0
    kept: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, reason: str, row: int, text: str) -> None:
        """Count a row as dropped for ``reason``."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < SHOWN:
            examples.append(f"row {row} {text[:60]!r}")

    def __str__(self) -> str:
        lines = [f"{self.read} rows read, {self.kept} questions kept"]
        for reason, count in self.counts.items():
            lines.append(f"dropped {count}: {reason}, such as {'; '.join(self.examples[reason])}")
        return "\n".join(lines)


def clean(items: Iterable[Item], report: Report) -> list[Item]:
    """The items to keep, in order; dropped items are counted in ``report``."""
    groups: dict[str, list[tuple[int, Item]]] = {}
    for row, item in enumerate(items):
        report.read += 1
        if item.question and item.answer:
            groups.setdefault(question_id(item.question), []).append((row, item))
        else:
            report.drop(
                "no answer" if item.question else "no question", row, item.question or item.answer
            )
    kept = []
    for group in groups.values():
        dropped, reason = group, "a question with conflicting answers"
        if len({item.answer for _, item in group}) == 1:
            kept.append(group[0][1])
            dropped, reason = group[1:], "a repeated question"
        for row, item in dropped:
            report.drop(reason, row, item.question)
    report.kept = len(kept)
    return kept


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "exgrpo-data train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--dataset_name",
        help="dataset of the Hugging Face hub, such as Elliott/Openr1-Math-46k-8192",
    )
    source.add_argument(
        "--input_file",
        type=Path,
        nargs="+",
        help="local .parquet, .jsonl, .json (one row per line) or .csv",
    )
    parser.add_argument("--output_file", type=Path, required=True, help="parquet file to write")
    parser.add_argument(
        "--split", default="train", help="split of the hub's dataset, and extra_info.split (train)"
    )
    parser.add_argument(
        "--question_key",
        help=f"column, or path a.b (default: the first that exists of {QUESTION_KEYS})",
    )
    parser.add_argument(
        "--answer_key",
        help=f"column, or path a.b (default: the first that exists of {ANSWER_KEYS})",
    )
    parser.add_argument(
        "--system_prompt_file",
        help="text of each row's system message, or a .parquet file to take it from, 'none' for "
        "no message "
        "(default: the row's own, or system_prompt.txt)",
    )
    parser.add_argument(
        "--data_source", help="value of data_source (the dataset's or first file's name)"
    )
    parser.add_argument(
        "--shuffle_seed", "--shuffle-seed", type=int, help="shuffle the questions with this seed"
    )
    parser.add_argument("--limit", type=int, help="keep this many questions, after shuffling (all)")
    options = parser.parse_args(arguments)
    if options.limit is not None and options.limit < 1:
        parser.error(f"--limit {options.limit}: must be 1 or more")
    if options.output_file.suffix != ".parquet" or options.output_file.is_dir():
        parser.error(f"--output_file {options.output_file}: must be a file that ends in .parquet")
    return options


def read_items(source: Source, options: argparse.Namespace) -> Iterator[Item]:
    """Question, answer and system message of each row of a source."""
    question_key = source.column("--question_key", options.question_key, QUESTION_KEYS)
    answer_key = source.column("--answer_key", options.answer_key, ANSWER_KEYS)
    columns = {
        key if key in source.columns else key.split(".")[0] for key in (question_key, answer_key)
    }
    for row in tqdm(
        source.rows(sorted(columns)), total=source.total, desc=source.name, unit="row", disable=None
    ):
        question = lookup(row, question_key)
        yield Item(
            question_text(question), answer_text(lookup(row, answer_key)), system_text(question)
        )


def read_questions(options: argparse.Namespace) -> list[Item]:
    """The questions to keep from all sources; prints how many rows were read and dropped.

    Raises:
        ValueError: a source lacks a column or is not a data file, or no question is left.
        OSError: there is no such file.
    """
    if options.dataset_name:
        sources = [open_dataset(options.dataset_name, options.split)]
    else:
        sources = [open_file(path) for path in options.input_file]
    report = Report()
    items = clean((item for source in sources for item in read_items(source, options)), report)
    print(report)
    if not items:
        raise ValueError(f"{sources[0].name}: no question with an answer is left")
    return items


def choose(items: list[Item], options: argparse.Namespace) -> list[Item]:
    """The items to write, shuffled and limited; without their own system messages if
    --system_prompt_file is set.
    """
    chosen = list(items)
    if options.shuffle_seed is not None:
        random.Random(options.shuffle_seed).shuffle(chosen)
    chosen = chosen[: options.limit]
    if options.system_prompt_file is not None:
        return [item._replace(system="") for item in chosen]
    own = sum(bool(item.system) for item in chosen)
    print(
        f"system message: the row's own in {own} rows, that of {SYSTEM_PROMPT.name} in "
        f"{len(chosen) - own}"
    )
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, clean, write and report."""
    options = parse_arguments(arguments)
    try:
        system = read_system_prompt(options.system_prompt_file or str(SYSTEM_PROMPT))
        items = choose(read_questions(options), options)
        name = options.data_source or options.dataset_name or options.input_file[0].stem
        rows = [
            make_row(
                item.question,
                item.answer,
                row,
                data_source=name,
                split=options.split,
                system=item.system or system,
            )
            for row, item in enumerate(items)
        ]
        write_parquet(rows, options.output_file)
    except (ValueError, OSError, csv.Error) as error:
        refused("exgrpo-data train", error)
    print(f"{options.output_file}: {len(rows)} rows")


if __name__ == "__main__":
    with in_one_line("exgrpo-data train", "nothing was written"):
        main()
