"""Trajectories exported from a pool or imported into one: a parquet or jsonl file, one row each,
values bit-exact.

question_id   the question's id in the pool
question      its text; null if the data files are not known
successes     the question's bucket
step          global step that generated the trajectory
entropy       mean token entropy in nats; null if unknown
tokens        the response as sampled
log_probs     natural log, one per token; null if they were not recorded
loss_mask     true at the policy's own tokens; null if all are
reward        0 to 1
note          the trajectory's note; null if it has none
grader        who judged it (exgrpo.provenance); null if that is unknown
response      the decoded tokens, for reading; an import uses it only for rows without tokens
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved import durable, pool_segments

SUFFIXES = (".parquet", ".jsonl")
_BATCH = 1024
_LISTS = ("tokens", "log_probs", "loss_mask")

Row = dict[str, Any]


def to_row(
    question_id: str,
    successes: int,
    trajectory: Trajectory,
    question: str | None,
    response: str | None,
) -> Row:
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
        "grader": trajectory.grader,
        "response": response,
    }


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write parquet or jsonl, by the suffix, replacing `path` only when complete. Returns the
    number of rows.

    Rows are consumed in batches. After an OSError the previous file is unchanged.
    """
    with durable.replaced(path) as temporary:
        write = _write_parquet if path.suffix == ".parquet" else _write_jsonl
        return write(temporary, rows)


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
            # tolist gives doubles: they hold a float32 exactly, and JSON writes them so that they
            # read back the same
            lists = {name: row[name].tolist() for name in _LISTS if row[name] is not None}
            file.write(json.dumps(row | lists, ensure_ascii=False, allow_nan=False) + "\n")
            written += 1
    return written


def read_rows(path: Path) -> Iterator[tuple[int, Row | str]]:
    """(number, row) of a parquet or jsonl file, numbered from 1 like lines; a str instead of a row
    says what is wrong.

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
            wrong = f"is a {type(row).__name__}: must be a JSON object"
            yield number, row if isinstance(row, dict) else wrong
