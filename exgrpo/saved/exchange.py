"""Trajectories as one file, parquet or jsonl, that leaves a pool or enters one; a row each, the values to the bit.

question_id   of the question, as the pool knows it
question      its text; null where nobody gave the data files
successes     the bucket it is filed under
step          global step that wrote the trajectory
entropy       mean token entropy in nats; null if unknown
tokens        the response as sampled
log_probs     natural log, one a token; null if nobody recorded them
loss_mask     true at the policy's own tokens; null where all are
reward        0 to 1
note          what its author noted; null for none
response      the tokens decoded, for people: tokens are never made from it where there are tokens
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved import durable, pool_segments

SUFFIXES = (".parquet", ".jsonl")
_BATCH = 1024
_LISTS = ("tokens", "log_probs", "loss_mask")

Row = dict[str, Any]


def to_row(question_id: str, successes: int, trajectory: Trajectory, question: str | None, response: str | None) -> Row:
    """A trajectory as a row of such a file; the arrays are the trajectory's own."""
    return {
        "question_id": question_id,
        "question": question,
        "successes": successes,
        "step": trajectory.step,
        "entropy": None if math.isnan(trajectory.entropy) else trajectory.entropy,
        "tokens": trajectory.tokens,
        "log_probs": trajectory.log_probs if trajectory.has_log_probs else None,
        "loss_mask": trajectory.loss_mask,
        "reward": trajectory.reward,
        "note": trajectory.note,
        "response": response,
    }


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write the file its suffix names, in the place of what stood there once it is whole. Returns the number of rows.

    Rows are taken one batch at a time. OSError leaves what was there.
    """
    with replaced(path) as temporary:
        return _write_parquet(temporary, rows) if path.suffix == ".parquet" else _write_jsonl(temporary, rows)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; what is there when the block ends well takes `path`'s place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        durable.sync(temporary)
        os.replace(temporary, path)
        durable.sync(path.absolute().parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write_parquet(path: Path, rows: Iterable[Row]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "question_id": pa.string(),
        "question": pa.string(),
        "successes": pa.int32(),
        **pool_segments.trajectory_columns(),
        "response": pa.string(),
    }
    source, written = iter(rows), 0
    with pq.ParquetWriter(path, pa.schema(kinds), compression="zstd") as writer:
        while batch := list(itertools.islice(source, _BATCH)):
            columns = [pa.array([row[name] for row in batch], kind) for name, kind in kinds.items()]
            writer.write_table(pa.Table.from_arrays(columns, names=list(kinds)))
            written += len(batch)
    return written


def _write_jsonl(path: Path, rows: Iterable[Row]) -> int:
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            # tolist makes doubles, which hold a float32 exactly and which JSON writes so that they read back the same
            lists = {name: row[name].tolist() for name in _LISTS if row[name] is not None}
            file.write(json.dumps(row | lists, ensure_ascii=False, allow_nan=False) + "\n")
            written += 1
    return written


def read_rows(path: Path) -> Iterator[tuple[int, Row | str]]:
    """(number, row) of a parquet or jsonl file, numbered from 1 as its lines are; a text says why there is no row.

    Raises:
        ValueError, OSError: the file as a whole cannot be read.
    """
    return _read_parquet(path) if path.suffix == ".parquet" else _read_jsonl(path)


def _read_parquet(path: Path) -> Iterator[tuple[int, Row | str]]:
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _read_jsonl(path: Path) -> Iterator[tuple[int, Row | str]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"not JSON ({error})"
                continue
            yield number, row if isinstance(row, dict) else f"is a {type(row).__name__}: must be a JSON object"
