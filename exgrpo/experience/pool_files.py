"""The saved form of a pool: two Parquet files and a manifest, in a folder that is replaced as a whole.

    trajectories.parquet   question, bucket, step, entropy, tokens, log_probs; in the order of last recording
    questions.parquet      question, bucket, position, retired; questions in their order of entry, then the retired ones
    manifest.json          format_version, rollout_n, counts, counters, identity, sha256 of the two files

pyarrow is imported inside the functions: a pool that is neither saved nor loaded needs numpy alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exgrpo.experience.experience_bucket_manager import BucketState
from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_store import pack, unpack

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION = 1
TRAJECTORIES = "trajectories.parquet"
QUESTIONS = "questions.parquet"
MANIFEST = "manifest.json"
_BATCH = 1024  # trajectories in a row group; bounds what saving and loading hold beside the pool


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a sibling folder, then put it in `folder`'s place: there is always one whole state to read."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    finish_replacement(folder)
    fresh, previous = _sibling(folder, "tmp"), _sibling(folder, "previous")
    if fresh.exists():
        shutil.rmtree(fresh)  # left by a save that was killed
    fresh.mkdir()
    fill(fresh)
    for path in (*sorted(fresh.iterdir()), fresh):
        _sync(path)
    if folder.exists():
        os.rename(folder, previous)
    os.rename(fresh, folder)
    _sync(folder.parent)
    if previous.exists():
        shutil.rmtree(previous)


def finish_replacement(folder: Path) -> None:
    """Undo or complete a replacement that was killed between its two renames or after them."""
    folder = folder.absolute()
    previous = _sibling(folder, "previous")
    if previous.exists():
        if folder.exists():
            shutil.rmtree(previous)
        else:
            os.rename(previous, folder)


def _sibling(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_trajectories(path: Path, records: Iterable[tuple[str, bytes]], bucket_of: Mapping[str, int]) -> None:
    """Write (question, packed trajectory) records, one row group for each batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "question": pa.string(),
        "bucket": pa.int32(),
        "step": pa.int64(),
        "entropy": pa.float64(),
        "tokens": pa.list_(pa.int32()),
        "log_probs": pa.list_(pa.float32()),
    }
    source = iter(records)
    with pq.ParquetWriter(path, pa.schema(kinds), compression="zstd", use_dictionary=["question"]) as writer:
        while batch := list(itertools.islice(source, _BATCH)):
            views = [unpack(packed) for _, packed in batch]
            ends = pa.array(np.cumsum([0, *map(len, views)]), pa.int32())
            columns = [
                pa.array([question for question, _ in batch], pa.string()),
                pa.array([bucket_of[question] for question, _ in batch], pa.int32()),
                pa.array([view.step for view in views], pa.int64()),
                pa.array([view.entropy for view in views], pa.float64()),
                pa.ListArray.from_arrays(ends, pa.array(np.concatenate([view.tokens for view in views]))),
                pa.ListArray.from_arrays(ends, pa.array(np.concatenate([view.log_probs for view in views]))),
            ]
            writer.write_table(pa.Table.from_arrays(columns, names=list(kinds)))


def read_trajectories(path: Path) -> Iterator[tuple[str, bytes]]:
    """The records that write_trajectories was given."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            questions, steps, entropies = (batch.column(name).to_pylist() for name in ("question", "step", "entropy"))
            tokens, log_probs = _rows(batch.column("tokens")), _rows(batch.column("log_probs"))
            for question, *parts in zip(questions, tokens, log_probs, steps, entropies, strict=True):
                yield question, pack(Trajectory.view(*parts))


def _rows(column: pa.ListArray) -> list[np.ndarray[Any, Any]]:
    ends = column.offsets.to_numpy()
    return np.split(column.flatten().to_numpy(), ends[1:-1] - ends[0])


def write_questions(path: Path, state: BucketState, retired_bucket: int) -> None:
    """Write the bucket manager's state; a retired question has position -1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept, retired = len(state.questions), len(state.retired)
    columns = {
        "question": pa.array([*state.questions, *state.retired], pa.string()),
        "bucket": pa.array([*state.buckets, *[retired_bucket] * retired], pa.int32()),
        "position": pa.array([*state.positions, *[-1] * retired], pa.int64()),
        "retired": pa.array([*[False] * kept, *[True] * retired], pa.bool_()),
    }
    pq.write_table(pa.table(columns), path, compression="zstd")


def read_questions(path: Path) -> BucketState:
    """The state that write_questions was given."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    questions, buckets, positions = (table[name].to_pylist() for name in ("question", "bucket", "position"))
    kept = len(positions) - sum(table["retired"].to_pylist())
    return BucketState(questions[:kept], buckets[:kept], positions[:kept], questions[kept:])


def write_manifest(folder: Path, rollout_n: int, identity: Mapping[str, object], **numbers: Mapping[str, int]) -> None:
    """Describe the two files next to it. TypeError, before the folder is put in its place, if identity is not JSON."""
    manifest = {
        "format_version": FORMAT_VERSION,
        "rollout_n": rollout_n,
        "identity": dict(identity),
        "sha256": {name: _sha256(folder / name) for name in (TRAJECTORIES, QUESTIONS)},
        **numbers,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(folder: Path, rollout_n: int, identity: Mapping[str, object]) -> dict[str, Any]:
    """The manifest of a folder that is whole and belongs to this run.

    Raises:
        FileNotFoundError: naming the file.
        ValueError: version, rollout_n, identity or a checksum differ; both sides are in the message.
    """
    for name in (MANIFEST, TRAJECTORIES, QUESTIONS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"saved pool lacks {folder / name}")
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    _same(folder, "format_version", manifest.get("format_version"), FORMAT_VERSION)
    _same(folder, "rollout_n", manifest["rollout_n"], rollout_n)
    saved, asked = manifest["identity"], json.loads(json.dumps(dict(identity)))
    for key in sorted(saved.keys() | asked.keys()):
        _same(folder, f"identity {key}", saved.get(key), asked.get(key))
    for name, checksum in manifest["sha256"].items():
        _same(folder, f"sha256 of {name}", _sha256(folder / name), checksum)
    return manifest


def _same(folder: Path, what: str, saved: object, expected: object) -> None:
    if saved != expected:
        raise ValueError(f"saved pool {folder}: {what} is {saved!r}, expected {expected!r}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
