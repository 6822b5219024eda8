"""The rows of a study: a Parquet file, and beside it lines of JSON of what was done since it was written.

A study that is stopped leaves its lines; the next one reads both and, at its end, makes one Parquet file of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from exgrpo.saved import durable

Row = dict[str, Any]


def read(file: Path) -> list[Row]:
    """All rows, in the order in which they were added; none if there is no file."""
    stored = [_without_nulls(row) for row in pq.read_table(file).to_pylist()] if file.exists() else []
    return stored + [row for row in _lines(file) if row not in stored]  # a kill in `pack` may leave a row in both


def add(file: Path, *rows: Row) -> None:
    """Append rows; one process writes a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with _journal(file).open("a") as lines:
        lines.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def pack(file: Path) -> None:
    """Make one Parquet file of all rows, if there are lines."""
    if not _journal(file).exists():
        return
    rows = read(file)
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    with durable.replaced(file) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd", compression_level=19)
    _journal(file).unlink()


def _journal(file: Path) -> Path:
    return file.with_suffix(".jsonl")


def _lines(file: Path) -> list[Row]:
    journal = _journal(file)
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def _without_nulls(value: Any) -> Any:
    """Without the entries that a row does not have and others of the file do."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
