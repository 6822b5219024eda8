"""Write a training file in verl's parquet schema from a dataset of questions and answers; nothing else of it is used.

    python data/prepare_train.py --dataset_name Elliott/Openr1-Math-46k-8192 --output_file data/openr1.parquet
    python data/prepare_train.py --input_file questions.jsonl --output_file train.parquet

Rows without a question or an answer are dropped; so are repeated questions, which would share one entry of the experience
pool: all but the first where the answers agree, every one of them where they conflict, since no one can tell which answer
is right. Each is counted and the first are shown. The file appears when it is whole.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exgrpo.experience.question_id import question_id

QUESTION_KEYS = ("question", "problem", "prompt", "query", "instruction")
ANSWER_KEYS = ("answer", "reward_model.ground_truth", "ground_truth", "final_answer", "solution")
SYSTEM_PROMPT = Path(__file__).with_name("system_prompt.txt")
SHOWN = 3  # examples of each kind of dropped row

Row = Mapping[str, Any]


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
    return Source(
        name, dataset.column_names, len(dataset), lambda columns: iter(dataset.select_columns(list(columns)))
    )


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
    if isinstance(value, list):
        turns = [m.get("content") for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        value = turns[-1] if turns else None
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


def clean(pairs: Iterable[tuple[str, str]], report: Report) -> list[tuple[str, str]]:
    """The questions and answers to keep, in order; what is dropped goes into ``report``."""
    kept: dict[str, tuple[str, str]] = {}
    conflicting: dict[str, int] = {}
    for row, (question, answer) in enumerate(pairs):
        report.read += 1
        if not question or not answer:
            report.drop("no answer" if question else "no question", row, question or answer)
            continue
        first = kept.setdefault(key := question_id(question), (question, answer))
        if first[0] is question:
            conflicting[key] = 0
        elif first[1] == answer and not conflicting[key]:
            report.drop("a question that stands there already, with the same answer", row, question)
        else:
            report.drop("a question that stands there with another answer (no row of it is kept)", row, question)
            conflicting[key] += 1
    chosen = [pair for key, pair in kept.items() if not conflicting[key]]
    if lost := len(kept) - len(chosen):
        report.counts["first rows of questions with conflicting answers"] = lost
        report.examples["first rows of questions with conflicting answers"] = [
            repr(kept[key][0][:60]) for key, times in conflicting.items() if times
        ][:SHOWN]
    report.kept = len(chosen)
    return chosen


def make_row(
    question: str, answer: str, index: int, *, data_source: str, split: str, system: str | None
) -> dict[str, Any]:
    """One row of verl's schema; ``extra_info.question_id`` is the same in every file that holds the question."""
    messages = [{"role": "system", "content": system}] if system else []
    return {
        "data_source": data_source,
        "prompt": [*messages, {"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"index": index, "question_id": question_id(question), "split": split},
    }


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows beside ``path`` and rename the file once it is on disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            pq.write_table(pa.Table.from_pylist(rows), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
