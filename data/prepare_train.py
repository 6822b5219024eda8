"""Write a training file in verl's parquet schema from a dataset of questions and answers; nothing else of it is used.

    python data/prepare_train.py --dataset_name Elliott/Openr1-Math-46k-8192 --output_file data/openr1.parquet
    python data/prepare_train.py --input_file questions.jsonl --output_file train.parquet

A system message that a row has of its own is kept, as in the released run; a row without one gets that of
system_prompt.txt. --system_prompt_file gives every row another, or none.

Rows without a question or an answer are dropped; so are repeated questions, which would share one entry of the
experience pool: all but the first where the answers agree, every one of them where they conflict, since no one can tell
which is right. Each is counted and the first are shown. The file appears when it is whole.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

if not __package__:  # started by its path: this folder is on the import path, the root is not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.verl_rows import fail, make_row, read_system_prompt, write_parquet
from exgrpo.experience.question_id import question_id

QUESTION_KEYS = ("question", "problem", "prompt", "query", "instruction")
ANSWER_KEYS = ("answer", "reward_model.ground_truth", "ground_truth", "final_answer", "solution")
SYSTEM_PROMPT = Path(__file__).with_name("system_prompt.txt")
SHOWN = 3  # examples of each kind of dropped row

Row = Mapping[str, Any]


class Item(NamedTuple):
    """What is read of a row, each part empty where the row has none; ``system`` is the row's own system message."""

    question: str
    answer: str
    system: str


@dataclass(frozen=True)
class Source:
    """Rows to read: ``rows(columns)`` yields mappings that hold at least these columns."""

    name: str
    columns: Sequence[str]
    total: int | None
    rows: Callable[[Sequence[str]], Iterable[Row]]


@dataclass
class Report:
    """How many rows were read and what became of them; ``examples`` are row numbers of the source, from 0."""

    read: int = 0
    kept: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, reason: str, row: int, text: str) -> None:
        """Count a row as dropped for ``reason``."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if len(shown := self.examples.setdefault(reason, [])) < SHOWN:
            shown.append(f"row {row} {text[:60]!r}")

    def __str__(self) -> str:
        lines = [f"{self.read} rows read, {self.kept} questions kept"]
        return "\n".join(
            lines + [f"dropped {n}: {why}, such as {'; '.join(self.examples[why])}" for why, n in self.counts.items()]
        )


def open_file(path: Path) -> Source:
    """A parquet, jsonl (or .json with one object a line) or csv file.

    Raises:
        ValueError: another ending, or no rows.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        parquet = pq.ParquetFile(path)

        def read(columns: Sequence[str]) -> Iterator[Row]:
            for batch in parquet.iter_batches(1024, columns=list(columns)):
                yield from batch.to_pylist()

        return Source(str(path), parquet.schema_arrow.names, parquet.metadata.num_rows, read)
    if path.suffix not in (".jsonl", ".json", ".csv"):
        raise ValueError(f"{path}: must end in .parquet, .jsonl, .json or .csv")
    csv.field_size_limit(1 << 30)  # answers with worked solutions exceed the default
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines)) if path.suffix == ".csv" else _json_lines(path, lines)
    if not rows:
        raise ValueError(f"{path}: no rows")
    return Source(str(path), list(rows[0]), len(rows), lambda columns: rows)


def _json_lines(path: Path, lines: Iterable[str]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise ValueError(f"{path}: line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}: line {number} is not an object")
        rows += [row] if row else []
    return rows


def open_dataset(name: str, split: str) -> Source:
    """A dataset of the Hugging Face hub, downloaded or from its local cache."""
    import datasets

    dataset = datasets.load_dataset(name, split=split)
    return Source(name, dataset.column_names, len(dataset), lambda columns: iter(dataset.select_columns(list(columns))))


def pick_key(source: Source, option: str, given: str | None, known: Sequence[str]) -> str:
    """The column to read, ``a.b`` standing for field b of column a: the one given, else the first known one there is.

    Raises:
        ValueError: the source has no such column.
    """
    for key in [given] if given else known:
        if key in source.columns or key.split(".")[0] in source.columns:
            return key
    wanted = repr(given) if given else "of these names: " + ", ".join(known)
    raise ValueError(f"{source.name}: no column {wanted} ({option}); it has {', '.join(source.columns)}")


def lookup(row: Row, key: str) -> Any:
    """The value at ``key``, dotted or not; None where a part of the path is missing."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def question_text(value: Any) -> str:
    """The text of a question: the value, or the last user turn of a list of messages; empty if there is none."""
    return _text((_turns(value, "user") or [None])[-1] if isinstance(value, list) else value)


def system_text(value: Any) -> str:
    """The first system turn of a list of messages; empty if there is none."""
    return _text((_turns(value, "system") or [None])[0])


def _turns(messages: Any, role: str) -> list[Any]:
    rows = messages if isinstance(messages, list) else []
    return [row.get("content") for row in rows if isinstance(row, Mapping) and row.get("role") == role]


def _text(value: Any) -> str:
    return value.encode(errors="replace").decode().strip() if isinstance(value, str) else ""


def answer_text(value: Any) -> str:
    """The final answer: what follows the last "####", or stands in the last \\boxed{}, or the whole; empty if none."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, (list, Mapping)) or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = str(value).encode(errors="replace").decode()
    if "####" in text:
        number = text.rpartition("####")[2].strip()
        return number.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", number) else number
    _, boxed, rest = text.rpartition("\\boxed{")
    depth, end = 1, 0
    while boxed and end < len(rest) and depth:
        depth += {"{": 1, "}": -1}.get(rest[end], 0)
        end += 1
    return rest[: end - 1].strip() if boxed and not depth else text.strip()


def clean(items: Iterable[Item], report: Report) -> list[Item]:
    """The items to keep, in order; what is dropped goes into ``report``."""
    groups: dict[str, list[tuple[int, Item]]] = {}
    for row, item in enumerate(items):
        report.read += 1
        if item.question and item.answer:
            groups.setdefault(question_id(item.question), []).append((row, item))
        else:
            report.drop("no answer" if item.question else "no question", row, item.question or item.answer)
    kept = []
    for group in groups.values():
        agree = len({item.answer for _, item in group}) == 1
        kept += [group[0][1]] if agree else []
        for row, item in group[agree:]:
            reason = "a question that stands there already" if agree else "a question with conflicting answers"
            report.drop(reason, row, item.question)
    report.kept = len(kept)
    return kept


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--dataset_name", help="dataset of the Hugging Face hub, such as Elliott/Openr1-Math-46k-8192")
    source.add_argument(
        "--input_file", type=Path, nargs="+", help="local .parquet, .jsonl, .json (a row a line) or .csv"
    )
    parser.add_argument("--output_file", type=Path, required=True, help="parquet file to write")
    parser.add_argument("--split", default="train", help="split of the hub's dataset, and extra_info.split (train)")
    parser.add_argument("--question_key", help=f"column, or path a.b; else the first there is of {QUESTION_KEYS}")
    parser.add_argument("--answer_key", help=f"column, or path a.b; else the first there is of {ANSWER_KEYS}")
    parser.add_argument(
        "--system_prompt_file",
        help="text of each row's system message, 'none' for no message (the row's own, else system_prompt.txt)",
    )
    parser.add_argument("--data_source", help="what to write as data_source (the dataset's or first file's name)")
    parser.add_argument("--shuffle_seed", "--shuffle-seed", type=int, help="shuffle the questions with this seed")
    parser.add_argument("--limit", type=int, help="keep this many questions, after shuffling (all)")
    options = parser.parse_args(arguments)
    if options.limit is not None and options.limit < 1:
        parser.error(f"--limit {options.limit}: must be 1 or more")
    return options


def read_items(source: Source, options: argparse.Namespace) -> Iterator[Item]:
    """Question, answer and system message of each row of a source."""
    question_key = pick_key(source, "--question_key", options.question_key, QUESTION_KEYS)
    answer_key = pick_key(source, "--answer_key", options.answer_key, ANSWER_KEYS)
    columns = {key if key in source.columns else key.split(".")[0] for key in (question_key, answer_key)}
    for row in tqdm(source.rows(sorted(columns)), total=source.total, desc=source.name, unit="row", disable=None):
        asked = lookup(row, question_key)
        yield Item(question_text(asked), answer_text(lookup(row, answer_key)), system_text(asked))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, clean, write and report."""
    options = parse_arguments(arguments)
    try:
        system = read_system_prompt(options.system_prompt_file or str(SYSTEM_PROMPT))
        if options.dataset_name:
            sources = [open_dataset(options.dataset_name, options.split)]
        else:
            sources = [open_file(path) for path in options.input_file]
        report = Report()
        items = clean((item for source in sources for item in read_items(source, options)), report)
        print(report)
        if not items:
            raise ValueError(f"{sources[0].name}: no question with an answer is left")
    except (ValueError, OSError, csv.Error) as error:
        sys.exit(fail("prepare_train.py", error))
    if options.shuffle_seed is not None:
        random.Random(options.shuffle_seed).shuffle(items)
    items = items[: options.limit]
    if options.system_prompt_file is None:
        own = sum(bool(item.system) for item in items)
        print(f"system message: the row's own in {own} rows, that of {SYSTEM_PROMPT.name} in {len(items) - own}")
    else:
        items = [item._replace(system="") for item in items]
    name = options.data_source or options.dataset_name or options.input_file[0].stem
    rows = [
        make_row(item.question, item.answer, index, data_source=name, split=options.split, system=item.system or system)
        for index, item in enumerate(items)
    ]
    write_parquet(rows, options.output_file)
    print(f"{options.output_file}: {len(rows)} rows")


if __name__ == "__main__":
    main()
