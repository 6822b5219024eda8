"""The saved form of a buffer.

pool/                   the trajectories (exgrpo.saved.pool_files), each rollout's text in its note;
                        the manifest's replay_state has name and SHA-256 of the file beside it, so
                        that renaming the pool into place commits both
windows-<sha>.parquet   question, measures: the difficulty window of every question seen
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo.buffer.difficulty_bucketer import DifficultyBucketer, Measure
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.saved import durable, pool_files
from exgrpo.saved.pool_files import SavedPool
from exgrpo.saved.pool_folder import PoolFolder

IDENTITY = {"kind": "TrajectoryBuffer"}
POOL = "pool"
_FUNCTION = "a function"
_PATIENCE_S = 10.0  # for another writer beside the folder


@dataclass(frozen=True)
class SavedBuffer:
    """A buffer without its pool.

    Attributes:
        settings: the constructor's arguments.
        step: the buffer's policy_snapshot.
        bucketer, rng: those of the buffer.
    """

    settings: Mapping[str, Any]
    step: int
    bucketer: DifficultyBucketer
    rng: np.random.Generator


def save(folder: Path, pool: ExperiencePool, on_disk: PoolFolder, buffer: SavedBuffer) -> None:
    """Write a buffer; after an OSError the old state is intact.

    Args:
        on_disk: belongs to `pool` and knows which parts of it are on disk already.
    """
    _require_pyarrow()
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with durable.exclusive(folder.parent, _PATIENCE_S):
        durable.finish_replacement(folder / POOL)
        windows = _write(folder, buffer.bucketer)
        metric = buffer.bucketer.metric
        state = {
            "settings": dict(buffer.settings),
            "metric": _FUNCTION if callable(metric) else metric,
            "window_size": buffer.bucketer.window_size,
            "rng": buffer.rng.bit_generator.state,
            "files": {"windows": windows},
        }
        on_disk.save(pool, folder / POOL, buffer.step, IDENTITY, state)
        for path in folder.glob(f"windows-{'[0-9a-f]' * 16}.parquet*"):
            if path.name != windows["file"]:
                path.unlink()


def read(folder: Path, metric: Measure | None) -> tuple[SavedBuffer, SavedPool]:
    """Read what `save` wrote, except the pool's segments. Raises as TrajectoryBuffer.load."""
    _require_pyarrow()
    folder = folder.absolute()
    pool = pool_files.read_saved(folder / POOL)
    pool_files.compare(folder / POOL, pool.manifest["identity"], IDENTITY)
    state = pool.manifest["replay_state"]
    if callable(metric) != (state["metric"] == _FUNCTION):
        saved_with = f"{folder} was saved with {state['metric']}"
        allowed = "must be given for a function and for nothing else"
        raise ValueError(f"metric={metric!r}: {saved_with}: {allowed}")
    bucketer = DifficultyBucketer(metric or state["metric"], state["window_size"])
    entry = state["files"]["windows"]
    content = pool_files.checked_bytes(folder / entry["file"], entry["sha256"], "saved buffer")
    windows = pool_files.table(content)
    questions, measures = (windows[name].to_pylist() for name in ("question", "measures"))
    bucketer.restore(dict(zip(questions, measures, strict=True)))
    rng = np.random.default_rng()
    rng.bit_generator.state = state["rng"]
    return SavedBuffer(state["settings"], pool.manifest["step"], bucketer, rng), pool


def _require_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError(
            "saved buffers need pyarrow, which is not installed: pip install pyarrow",
            name="pyarrow",
        )


def _write(folder: Path, bucketer: DifficultyBucketer) -> dict[str, str]:
    """Write the windows to a new file named by their content; returns its name and SHA-256."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    windows = bucketer.windows()
    measures = pa.array(windows.values(), pa.list_(pa.float64()))
    table = pa.table({"question": pa.array(windows, pa.string()), "measures": measures})
    temporary = folder / f"windows-{'0' * 16}.parquet.tmp"
    pq.write_table(table, temporary, compression="zstd")
    checksum = durable.sha256(temporary)
    path = folder / f"windows-{checksum[:16]}.parquet"
    durable.rename(temporary, path)
    return {"file": path.name, "sha256": checksum}
