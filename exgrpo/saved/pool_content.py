"""What a saved pool may hold: checks of files that are whole, whoever has written them.

All raise ValueError or TypeError, naming the column or the entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience import checked
from exgrpo.experience.experience_bucket_manager import BucketState
from exgrpo.saved import pool_segments

if TYPE_CHECKING:
    import pyarrow as pa

_MAY_BE_NULL = ("log_probs", "loss_mask", "note", "grader")


def check_manifest(manifest: Mapping[str, Any], tables: tuple[str, ...], optional: str) -> None:
    """Types and ranges of what a load reads; `optional` of the tables may be absent."""
    named, counts = manifest["sha256"].keys(), manifest["counts"]
    if not set(tables) - {optional} <= named <= set(tables):
        raise ValueError(f"sha256 names {sorted(named)}")
    numbers = {**counts, **manifest["counters"]}
    numbers |= {name: manifest[name] for name in ("step", "next_serial")}
    for name, number in numbers.items():
        checked.integer(name, number, 0)
    checked.integer("rollout_n", manifest["rollout_n"], 1)
    if not {"questions", "retired", "trajectories", "tokens"} <= counts.keys():
        raise ValueError(f"counts has {sorted(counts)}")
    for entry in manifest["segments"]:
        if pool_segments.Segment(**entry).file != f"segment-{entry['first']:012d}.parquet":
            raise ValueError(f"segments names {entry['file']!r}")
    for name in ("identity", "replay_state"):
        if not isinstance(manifest[name], dict | None):
            raise TypeError(f"{name} is {manifest[name]!r}")


def column(table: pa.Table | pa.RecordBatch, name: str, kind: pa.DataType, nulls: bool) -> Any:
    """A column of this type."""
    index = table.schema.get_field_index(name)
    if index < 0 or table.schema.field(index).type != kind:
        raise ValueError(f"column {name} is not there, or not {kind}")
    values = table.column(index)
    if values.null_count and not nulls:
        raise ValueError(f"column {name} has {values.null_count} nulls")
    return values


def serials_of(live: pa.Table) -> npt.NDArray[np.int64]:
    """The serials of a table of live trajectories: ascending, none twice."""
    import pyarrow as pa

    serials: npt.NDArray[np.int64] = column(live, "serial", pa.int64(), False).to_numpy()
    if (np.diff(serials, prepend=-1) <= 0).any():
        raise ValueError("column serial does not ascend")
    return serials


def state_of(questions: pa.Table) -> BucketState:
    """What a table of questions holds; which buckets there are and their order is not checked."""
    import pyarrow as pa

    kinds = {"question": pa.string(), "bucket": pa.int32(), "position": pa.int64()}
    names, buckets, positions = (
        column(questions, name, kind, False).to_pylist() for name, kind in kinds.items()
    )
    retired = column(questions, "retired", pa.bool_(), False).to_pylist()
    kept = len(names) - sum(retired)
    if any(retired[:kept]) or len(set(names)) != len(names) or "" in names:
        raise ValueError("questions: one is twice there, empty, or not where retired ones are")
    return BucketState(names[:kept], buckets[:kept], positions[:kept], names[kept:])


def history_of(history: pa.Table) -> list[dict[str, float]]:
    """What a table of the metrics of each step holds."""
    import pyarrow as pa

    for name in {"step", *history.column_names}:
        column(history, name, pa.float64(), nulls=name != "step")
    rows = history.to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def check_rows(batch: pa.RecordBatch) -> None:
    """Rows of which each is a `Trajectory` with a serial and a question."""
    import pyarrow as pa

    kinds = {"serial": pa.int64(), "question": pa.string(), **pool_segments.trajectory_columns()}
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
    """Of each list; 0 for a null."""
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    return np.nan_to_num(lengths.astype(np.float64)).astype(np.int64)
