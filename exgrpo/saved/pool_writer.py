"""Write a pool to its folder, in the form that pool_files describes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.experience_bucket_manager import BucketState
from exgrpo.experience.experience_pool import Snapshot
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.saved import durable, pool_files, pool_groups, pool_replays, pool_segments
from exgrpo.saved.pool_files import OnDisk
from exgrpo.saved.pool_segments import Segment


def save(
    folder: Path,
    snapshot: Snapshot,
    previous: OnDisk,
    facts: Mapping[str, object],
    groups: Collection[StoredGroup] = (),
) -> OnDisk:
    """Replace `folder` with a pool atomically. On an OSError, of one line, the old folder is
    unchanged.

    Args:
        previous: segments that need not be written again; if any of them is missing, all are
            written.
        facts: rollout_n, step, identity and replay_state for the manifest.
        groups: past groups, from the oldest to the newest; all of them are written each time.
    """
    folder = folder.absolute()
    written: list[Segment] = []
    previous = previous if previous.whole else OnDisk()
    durable.replace_folder(
        folder, lambda fresh: written.extend(_write(fresh, snapshot, previous, facts, groups))
    )
    return OnDisk(folder, written)


def _write(
    folder: Path,
    snapshot: Snapshot,
    previous: OnDisk,
    facts: Mapping[str, object],
    groups: Collection[StoredGroup],
) -> list[Segment]:
    target = folder / pool_files.TRAJECTORIES
    target.mkdir()
    count = len(snapshot.serials)
    mean_bytes = 8 * snapshot.tokens / max(count, 1)
    segments: list[Segment] = []
    for piece in pool_segments.plan(
        previous.segments, snapshot.serials, snapshot.next_serial, mean_bytes
    ):
        if piece.segment is not None:
            durable.link(previous.path(piece.segment), target / piece.segment.file)
            segments.append(piece.segment)
        else:
            records = snapshot.records(piece.first, piece.last)
            segments += pool_segments.write(target, piece, records)
    _write_tables(folder, snapshot, int(str(facts["rollout_n"])))
    if groups:
        pool_groups.write(folder / pool_files.GROUPS, groups)
    manifest = {
        "format_version": pool_files.FORMAT_VERSION,
        **facts,
        "counts": {
            "questions": len(snapshot.state.questions),
            "retired": len(snapshot.state.retired),
            "trajectories": count,
            "tokens": snapshot.tokens,
            **({"groups": len(groups)} if groups else {}),
        },
        "counters": dict(snapshot.counters),
        "next_serial": snapshot.next_serial,
        "segments": [dataclasses.asdict(segment) for segment in segments],
    }
    write_manifest(folder, manifest)
    return segments


def _write_tables(folder: Path, snapshot: Snapshot, retired_bucket: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_live(folder, snapshot.serials)
    write_questions(folder, snapshot.state, retired_bucket)
    names = sorted({name for row in snapshot.history for name in row} | {"step"})
    history = {
        name: pa.array([row.get(name) for row in snapshot.history], pa.float64()) for name in names
    }
    pq.write_table(pa.table(history), folder / pool_files.HISTORY, compression="zstd")
    pq.write_table(
        pool_replays.table(snapshot.replays), folder / pool_files.REPLAYED, compression="zstd"
    )


def write_live(folder: Path, serials: npt.NDArray[np.int64]) -> None:
    """The table of the trajectories in the pool, in the order of recording."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    delta: dict[str, Any] = {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}
    pq.write_table(pa.table({"serial": pa.array(serials)}), folder / pool_files.LIVE, **delta)


def write_questions(folder: Path, state: BucketState, retired_bucket: int) -> None:
    """The table of the questions; `retired_bucket` is K."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept, retired = len(state.questions), len(state.retired)
    columns = {
        "question": pa.array([*state.questions, *state.retired], pa.string()),
        "bucket": pa.array([*state.buckets, *[retired_bucket] * retired], pa.int32()),
        "position": pa.array([*state.positions, *[-1] * retired], pa.int64()),
        "retired": pa.array([*[False] * kept, *[True] * retired], pa.bool_()),
    }
    pq.write_table(
        pa.table(columns), folder / pool_files.QUESTIONS, compression="zstd", use_dictionary=False
    )


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """The manifest, last: with the checksums of the tables in `folder` and its own."""
    names = [name for name in pool_files.TABLES if (folder / name).is_file()]
    whole = {**manifest, "sha256": {name: durable.sha256(folder / name) for name in names}}
    whole["checksum"] = pool_files.checksum_of(whole)
    text = json.dumps(whole, indent=1, sort_keys=True) + "\n"
    (folder / pool_files.MANIFEST).write_text(text, encoding="utf-8")
