"""Trajectories on disk: immutable Parquet segments, each for a range of serials; new ones are
added, old ones linked.

A segment may hold trajectories that the pool has dropped since; live.parquet lists the serials that
are in the pool (pool_files). pyarrow is imported inside the functions: a pool that is neither saved
nor loaded needs numpy alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience import checked
from exgrpo.experience.packing import join
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved import durable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Record = tuple[int, str, Trajectory]  # serial, question, trajectory

# of tokens and log-probs; bounds the memory of saving and loading besides the pool
SEGMENT_BYTES = 1 << 27
MAX_SMALL = 8  # at most this many segments below half that size; more are merged
_BATCH = 1024  # trajectories in a row group
_MAY_BE_NULL = ("log_probs", "loss_mask", "note", "grader")


@dataclass(frozen=True)
class Segment:
    """A file of trajectories.

    Attributes:
        file: its name.
        first, last: the range of serials it covers, both included.
        rows, bytes: number of trajectories in it; bytes of their tokens and log-probs.
        sha256: of the file.
    """

    file: str
    first: int
    last: int
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Piece:
    """A range of serials, its live bytes, roughly, and its segment; None: to be written."""

    first: int
    last: int
    bytes: int
    segment: Segment | None


def plan(
    segments: Sequence[Segment], serials: npt.NDArray[np.int64], next_serial: int, mean_bytes: float
) -> list[Piece]:
    """The pieces of the next save, by ascending serials: segments to link and ranges to write.

    A segment without live trajectories is left out, one that is more than half dead is rewritten,
    and while there are more than MAX_SMALL small ones the two smallest neighbours are merged. So a
    trajectory is rewritten about log2(pool / checkpoint) times in its life, and at most half of the
    trajectories on disk are dead.

    Args:
        segments: of the last save, ascending.
        serials: [n], of the live trajectories, ascending.
        next_serial: the next serial number to assign.
        mean_bytes: mean bytes of a trajectory's tokens and log-probs.
    """
    start = segments[-1].last + 1 if segments else 0
    pieces = []
    for segment in segments:
        alive = _count(serials, segment.first, segment.last)
        keep = segment if 2 * alive >= segment.rows else None
        if alive:
            pieces.append(
                Piece(segment.first, segment.last, segment.bytes * alive // segment.rows, keep)
            )
    fresh = _count(serials, start, next_serial)
    if fresh:
        pieces.append(Piece(start, next_serial - 1, int(fresh * mean_bytes), None))
    while (pair := _worth_merging(pieces)) is not None:
        left, right = pieces[pair : pair + 2]
        pieces[pair : pair + 2] = [Piece(left.first, right.last, left.bytes + right.bytes, None)]
    return pieces


def _count(serials: npt.NDArray[np.int64], first: int, last: int) -> int:
    return int(np.searchsorted(serials, last, side="right")) - int(np.searchsorted(serials, first))


def _worth_merging(pieces: Sequence[Piece]) -> int | None:
    """The position of the pair of small neighbours to merge next, or None."""
    small = [piece.bytes < SEGMENT_BYTES // 2 for piece in pieces]
    pairs = [i for i in range(len(pieces) - 1) if small[i] and small[i + 1]]
    if sum(small) <= MAX_SMALL:  # merge only pieces that both have to be written anyway
        pairs = [i for i in pairs if pieces[i].segment is None and pieces[i + 1].segment is None]
    return min(pairs, key=lambda i: pieces[i].bytes + pieces[i + 1].bytes, default=None)


def trajectory_columns() -> dict[str, pa.DataType]:
    """Name -> type of a trajectory's columns, here and in files that leave a pool."""
    import pyarrow as pa

    return {
        "step": pa.int64(),
        "entropy": pa.float64(),
        "tokens": pa.list_(pa.int32()),
        "log_probs": pa.list_(pa.float32()),
        "loss_mask": pa.list_(pa.bool_()),
        "reward": pa.float64(),
        "note": pa.string(),
        "grader": pa.string(),
    }


def _record_columns() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {"serial": pa.int64(), "question": pa.string(), **trajectory_columns()}


def write(folder: Path, piece: Piece, records: Iterable[Record]) -> list[Segment]:
    """Write the records of a piece to as many segments as their size requires."""
    segments: list[Segment] = []
    source = iter(records)
    first = piece.first
    while head := list(itertools.islice(source, 1)):
        path = folder / f"segment-{first:012d}.parquet"
        rows, size, last = _write_file(path, itertools.chain(head, source))
        checksum = durable.sha256(path)
        segments.append(Segment(path.name, first, last, rows, bytes=size, sha256=checksum))
        first = last + 1
    return segments


def _write_file(path: Path, source: Iterator[Record]) -> tuple[int, int, int]:
    """Write one file, up to SEGMENT_BYTES; returns its rows, bytes and last serial."""
    import pyarrow as pa

    rows = size = last = 0
    with writer(path) as out:
        while size < SEGMENT_BYTES and (batch := list(itertools.islice(source, _BATCH))):
            out.write_table(pa.Table.from_arrays(columns(batch), names=out.schema.names))
            rows, last = rows + len(batch), batch[-1][0]
            size += sum(8 * len(trajectory) for _, _, trajectory in batch)
    return rows, size, last


def writer(path: Path, more: Mapping[str, pa.DataType] | None = None) -> pq.ParquetWriter:
    """A file of trajectories, to be written; `more`: name -> type of further columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = _record_columns() | dict(more or {})
    # Splitting the bytes of a number by place makes log-probs compressible, at no cost to who reads
    # them.
    split = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in ("tokens", "log_probs")}
    options = {"compression": "zstd", "compression_level": 1, "column_encoding": split}
    return pq.ParquetWriter(
        path, pa.schema(kinds), use_dictionary=["question", "grader"], **options
    )


def columns(batch: Sequence[Record]) -> list[pa.Array]:
    """The columns of these records, in the order of the file's."""
    import pyarrow as pa

    views = [trajectory for _, _, trajectory in batch]
    ends = np.cumsum([0, *map(len, views)], dtype=np.int32)
    absent = pa.array([not view.has_log_probs for view in views])
    tokens = np.concatenate([view.tokens for view in views])
    log_probs = np.concatenate([view.log_probs for view in views])
    return [
        pa.array([serial for serial, _, _ in batch], pa.int64()),
        pa.array([question for _, question, _ in batch], pa.string()),
        pa.array([view.step for view in views], pa.int64()),
        pa.array([view.entropy for view in views], pa.float64()),
        pa.ListArray.from_arrays(pa.array(ends), pa.array(tokens)),
        pa.ListArray.from_arrays(pa.array(ends), pa.array(log_probs), mask=absent),
        pa.array([view.loss_mask for view in views], pa.list_(pa.bool_())),
        pa.array([view.reward for view in views], pa.float64()),
        pa.array([view.note for view in views], pa.string()),
        pa.array([view.grader for view in views], pa.string()),
    ]


def batches(content: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a segment in batches of about a thousand; `content` is the file's bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(pa.BufferReader(content)) as file:
        yield from file.iter_batches(batch_size=_BATCH)


def column(table: pa.Table | pa.RecordBatch, name: str, kind: pa.DataType, nulls: bool) -> Any:
    index = table.schema.get_field_index(name)
    if index < 0 or table.schema.field(index).type != kind:
        raise ValueError(f"column {name} is not there, or not {kind}")
    values = table.column(index)
    if values.null_count and not nulls:
        raise ValueError(f"column {name} has {values.null_count} nulls")
    return values


def check_rows(batch: pa.RecordBatch) -> None:
    """Rows of which each is a `Trajectory` with a serial and a question."""
    kinds = _record_columns()
    rows = {name: column(batch, name, kind, name in _MAY_BE_NULL) for name, kind in kinds.items()}
    steps, entropies, rewards = (rows[name].to_numpy() for name in ("step", "entropy", "reward"))
    tokens, log_probs = (rows[name].flatten().to_numpy() for name in ("tokens", "log_probs"))
    lengths = _lengths(rows["tokens"])
    has_note = ~rows["note"].is_null().to_numpy(zero_copy_only=False)
    right = {
        "question": all(rows["question"].to_pylist()),
        "step": ((steps >= 0) & (steps < 2**32)).all(),
        "entropy": not (np.isinf(entropies) | (entropies < -checked.ROUNDING)).any(),
        "reward": np.isfinite(rewards).all(),
        "tokens": (tokens >= 0).all() and ((lengths > 0) | has_note).all(),
        "log_probs": (np.isfinite(log_probs) & (log_probs <= checked.ROUNDING)).all(),
    }
    for name in ("log_probs", "loss_mask"):
        there = ~rows[name].is_null().to_numpy(zero_copy_only=False)
        right[name] = right.get(name, True) and (_lengths(rows[name]) == lengths)[there].all()
    mask_ends = np.cumsum(_lengths(rows["loss_mask"]))
    actions = np.cumsum([0, *rows["loss_mask"].flatten().to_numpy(zero_copy_only=False)])
    leaves_none = actions[mask_ends] == actions[mask_ends - _lengths(rows["loss_mask"])]
    right["loss_mask"] = right["loss_mask"] and not leaves_none[there].any()
    if wrong := [name for name, is_right in right.items() if not is_right]:
        raise ValueError(f"column {wrong[0]} holds what no trajectory can have")


def _lengths(lists: pa.ListArray) -> npt.NDArray[np.int64]:
    """The length of each list; 0 for a null."""
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    return np.nan_to_num(lengths.astype(np.float64)).astype(np.int64)


def packed_records(
    batch: pa.RecordBatch, alive: npt.NDArray[np.int64]
) -> Iterator[tuple[int, str, bytes]]:
    """(serial, question, packed trajectory) of the rows whose serials are in `alive` [n]."""
    serials = batch.column("serial").to_numpy()
    is_alive = np.searchsorted(alive, serials, side="right") > np.searchsorted(alive, serials)
    numbers, questions, steps, entropies = (
        batch.column(name).to_pylist() for name in ("serial", "question", "step", "entropy")
    )
    masks, rewards, notes, graders = (
        batch.column(name).to_pylist() for name in ("loss_mask", "reward", "note", "grader")
    )
    tokens, starts, ends = _values(batch.column("tokens"))
    log_probs, firsts, lasts = _values(batch.column("log_probs"))
    for row in np.flatnonzero(is_alive).tolist():
        tokens_T = tokens[starts[row] : ends[row]]
        log_probs_T = log_probs[firsts[row] : lasts[row]]
        if len(log_probs_T) == 0:  # null: not recorded
            log_probs_T = np.full(len(tokens_T), np.nan, np.float32).data
        packed = join(
            numbers[row],
            steps[row],
            entropies[row],
            tokens_T,
            log_probs_T,
            reward=rewards[row],
            mask_bits=b"" if masks[row] is None else np.packbits(masks[row]).tobytes(),
            note=(notes[row] or "").encode(),
            grader=graders[row],
        )
        yield numbers[row], questions[row], packed


def _values(column: pa.ListArray) -> tuple[memoryview, list[int], list[int]]:
    """All values, and where each row's values begin and end; a null row is empty."""
    offsets = column.offsets.to_numpy()
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    ends = np.where(is_null, offsets[:-1], offsets[1:])
    return column.values.to_numpy().data, offsets[:-1].tolist(), ends.tolist()
