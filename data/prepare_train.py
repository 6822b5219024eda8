"""Write a training file in verl's parquet schema from a dataset's questions and answers; other
columns are ignored.

    exgrpo-data train --dataset_name Elliott/Openr1-Math-46k-8192 --output_file data/openr1.parquet
    exgrpo-data train --input_file questions.jsonl --output_file train.parquet

A chat keeps all its messages; in a column `messages` the assistant's turn at its end is no part of
the question, and the answer where there is no other. A row's own system message is kept, as in the
released run; a row without one gets that of system_prompt.txt. --system_prompt_file gives every row
another one, or none. Of a list of answers each counts.

Rows without a question or an answer are dropped. So are repeated questions (of a chat all messages
count), which would share one entry of the experience pool: all but the first if their answers
agree, and all of them if the answers conflict, since it is unknown which is correct. Dropped rows
are counted and some are shown. Answers that the reward (strict, or --reward) does not accept as
responses to themselves are counted, too: no rollout can be right there. The file is written
atomically.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from exgrpo.console import in_one_line, refused
from exgrpo.experience.question_id import prompt_id
from exgrpo.math_verify_reward import STRICT
from exgrpo_data import row_checks
from exgrpo_data.verl_rows import SYSTEM_PROMPT, make_row, read_system_prompt, write_parquet
from exgrpo_tools import reward_option
from exgrpo_tools.sources import Source, lookup, open_dataset, open_file
from exgrpo_tools.texts import answer_texts, messages_of

QUESTION_KEYS = ("question", "problem", "prompt", "query", "instruction", "messages")
ANSWER_KEYS = ("answer", "reward_model.ground_truth", "ground_truth", "final_answer", "solution")
SHOWN = 3  # examples of each kind of dropped row


class Item(NamedTuple):
    """The messages of a row's question and its answers, each of which counts; empty if the row has
    none.
    """

    messages: list[dict[str, Any]]
    answers: list[str]

    @property
    def text(self) -> str:
        """The last message, for a line about the row."""
        return str(self.messages[-1]["content"]) if self.messages else ", ".join(self.answers)

    @property
    def instructions(self) -> int:
        """How many of its messages, the first ones, are its own system messages."""
        roles = [message["role"] in ("system", "developer") for message in self.messages]
        return [*roles, False].index(False)


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
        if item.messages and item.answers:
            groups.setdefault(prompt_id(item.messages), []).append((row, item))
        else:
            report.drop("no answer" if item.messages else "no question", row, item.text)
    kept = []
    for group in groups.values():
        dropped, reason = group, "a question with conflicting answers"
        if len({frozenset(item.answers) for _, item in group}) == 1:
            kept.append(group[0][1])
            dropped, reason = group[1:], "a repeated question"
        for row, item in dropped:
            report.drop(reason, row, item.text)
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
        help="local .parquet, .jsonl, .json or .csv",
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
    parser.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="a model's folder: the prompts' lengths in its tokens are said",
    )
    parser.add_argument(
        "--max_prompt_length",
        type=int,
        default=1024,
        metavar="N",
        help="with it: data.max_prompt_length of the run, which drops longer ones (1024)",
    )
    reward_option.add_to(parser)
    options = parser.parse_args(arguments)
    if options.dataset_name and Path(options.dataset_name).expanduser().is_file():
        options.input_file, options.dataset_name = [Path(options.dataset_name).expanduser()], None
    if options.limit is not None and options.limit < 1:
        parser.error(f"--limit {options.limit}: must be 1 or more")
    if options.output_file.suffix != ".parquet" or options.output_file.is_dir():
        parser.error(f"--output_file {options.output_file}: must be a file that ends in .parquet")
    return options


def read_items(source: Source, options: argparse.Namespace) -> Iterator[Item]:
    """Question and answers of each row of a source; prints which columns they are of."""
    question_key = source.column("--question_key", options.question_key, QUESTION_KEYS)
    conversations = question_key.rpartition(".")[2] == "messages"
    known = (*ANSWER_KEYS, question_key) if conversations else ANSWER_KEYS
    answer_key = source.column("--answer_key", options.answer_key, known)
    print(f"{source.name}: questions of {question_key}, answers of {answer_key}")
    columns = {
        key if key in source.columns else key.split(".")[0] for key in (question_key, answer_key)
    }
    for row in tqdm(
        source.rows(sorted(columns)), total=source.total, desc=source.name, unit="row", disable=None
    ):
        messages, answer = messages_of(lookup(row, question_key)), lookup(row, answer_key)
        last = messages.pop() if conversations and _ends_in_answer(messages) else {}
        yield Item(
            messages, answer_texts(last.get("content") if answer_key == question_key else answer)
        )


def _ends_in_answer(messages: list[dict[str, Any]]) -> bool:
    return bool(messages) and messages[-1]["role"] == "assistant"


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
    --system_prompt_file is set. Prints what their prompts are made of.
    """
    chosen = list(items)
    if options.shuffle_seed is not None:
        random.Random(options.shuffle_seed).shuffle(chosen)
    chosen = chosen[: options.limit]
    chats = [item for item in chosen if len(item.messages) > item.instructions + 1]
    if chats:
        ends = sum(_ends_in_answer(item.messages) for item in chats)
        print(f"{len(chats)} rows are chats, with all messages; {ends} end in the assistant's turn")
    if options.system_prompt_file is not None:
        return [item._replace(messages=item.messages[item.instructions :]) for item in chosen]
    own = sum(item.instructions > 0 for item in chosen)
    print(
        f"system message: the row's own in {own} rows, that of {SYSTEM_PROMPT.name} in "
        f"{len(chosen) - own}"
    )
    return chosen


def answers_of(items: Sequence[Item]) -> list[Any]:
    """The answers as a column: texts, or lists of them if one has several."""
    several = any(len(item.answers) > 1 for item in items)
    return [item.answers if several else item.answers[0] for item in items]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, clean, write and report."""
    options = parse_arguments(arguments)
    try:
        system = read_system_prompt(options.system_prompt_file or str(SYSTEM_PROMPT))
        reward = reward_option.chosen(options, None) or reward_option.Reward(STRICT)
        items = choose(read_questions(options), options)
        name = options.data_source or options.dataset_name or options.input_file[0].stem
        rows = [
            make_row(
                item.messages,
                answer,
                row,
                data_source=name,
                split=options.split,
                system=None if item.instructions else system,
            )
            for row, (item, answer) in enumerate(zip(items, answers_of(items), strict=True))
        ]
        if options.tokenizer:
            prompts = [row["prompt"] for row in rows]
            print(row_checks.lengths(prompts, options.tokenizer, options.max_prompt_length))
        write_parquet(rows, options.output_file)
    except (ValueError, OSError, csv.Error) as error:
        refused("exgrpo-data train", error)
    print(f"{options.output_file}: {len(rows)} rows")
    print(row_checks.unaccepted(rows, reward))


if __name__ == "__main__":
    with in_one_line("exgrpo-data train", "nothing was written"):
        main()
