"""Rows to read: local parquet, jsonl, json and csv files, and datasets of the Hugging Face hub."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_WHOLE = re.compile(r'\s*(\[|\{\s*"\d+"\s*:\s*\{)')  # a list, or numbered objects


@dataclass(frozen=True)
class Source:
    """Rows to read: ``rows(columns)`` yields mappings with at least these columns; ``total`` is
    their number.
    """

    name: str
    columns: Sequence[str]
    total: int
    rows: Callable[[Sequence[str]], Iterable[Row]]

    def column(self, option: str, asked: str | None, known: Sequence[str]) -> str:
        """The column to read, where ``a.b`` is field b of column a: ``asked`` if it is set, or the
        first known one.

        Raises:
            ValueError: the source has no such column; ``option`` is the flag that sets it.
        """
        for key in [asked] if asked else known:
            if key in self.columns or key.split(".")[0] in self.columns:
                return key
        names = repr(asked) if asked else "of these names: " + ", ".join(known)
        raise ValueError(
            f"{self.name}: no column {names} ({option}); it has {', '.join(self.columns)}"
        )


def open_file(path: Path) -> Source:
    """A parquet, jsonl or csv file; .json with an object a line, a list of them, or one object of
    them by numbers. With a byte order mark or without; csv with commas, semicolons or tabs.

    Raises:
        ValueError: another suffix, another content, or no rows.
    """
    try:
        return _open_parquet(path) if path.suffix == ".parquet" else _open_text(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be UTF-8 text ({error})") from error


def _open_text(path: Path) -> Source:
    if path.suffix not in (".jsonl", ".json", ".csv"):
        raise ValueError(f"{path}: must end in .parquet, .jsonl, .json or .csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        text = file.read()
    rows = _csv(text) if path.suffix == ".csv" else _json(path, text)
    if not rows:
        raise ValueError(f"{path}: no rows")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return Source(str(path), columns, len(rows), lambda columns: rows)


def _csv(text: str) -> list[dict[str, Any]]:
    """The separator is the one that the first line has most of."""
    csv.field_size_limit(1 << 30)  # answers with worked solutions exceed the default
    header = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count))
    return list(reader)


def _json(path: Path, text: str) -> list[dict[str, Any]]:
    """Objects in lines, in a list, or numbered in one object."""
    if _WHOLE.match(text):
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: is not JSON ({error})") from error
        rows = whole if isinstance(whole, list) else list(whole.values())
        if wrong := [place for place, row in enumerate(rows) if not isinstance(row, dict)]:
            raise ValueError(f"{path}: entry {wrong[0]} is not an object")
        return rows
    return _json_lines(path, io.StringIO(text, newline="\n"))


def _open_parquet(path: Path) -> Source:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: is not Parquet ({error})") from error

    def read(columns: Sequence[str]) -> Iterator[Row]:
        for batch in parquet.iter_batches(1024, columns=list(columns)):
            yield from batch.to_pylist()

    return Source(str(path), parquet.schema_arrow.names, parquet.metadata.num_rows, read)


def _json_lines(path: Path, lines: Iterable[str]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}: line {number} is not an object")
        if row:
            rows.append(row)
    return rows


def open_dataset(name: str, split: str, subset: str | None = None) -> Source:
    """A dataset of the Hugging Face hub, downloaded or from its local cache."""
    import datasets

    dataset = datasets.load_dataset(name, subset, split=split)

    def read(columns: Sequence[str]) -> Iterator[Row]:
        return iter(dataset.select_columns(list(columns)))

    return Source(f"{name} {subset}" if subset else name, dataset.column_names, len(dataset), read)


def lookup(row: Row, key: str) -> Any:
    """The value at ``key``, which may be dotted; None if a part of the path is missing."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
