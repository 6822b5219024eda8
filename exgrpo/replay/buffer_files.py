"""The saved form of a buffer.

pool/                    the trajectories, as exgrpo.saved.pool_files writes them; its manifest's replay_state
                         names the two files beside it with their SHA-256: putting it in place commits all three
rollouts-<sha>.parquet   question, key, text, reward, entropy: what the pool does not keep, by a digest of the tokens
windows-<sha>.parquet    question, measures: the difficulty window of every question seen
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo.replay.difficulty_bucketer import DifficultyBucketer, Measure
from exgrpo.replay.holdings import Holdings
from exgrpo.replay.ledger import Entry, Ledger
from exgrpo.saved import durable, pool_files
from exgrpo.saved.pool_files import DamagedPool

IDENTITY = {"kind": "TrajectoryBuffer"}
POOL = "pool"
_FUNCTION = "a function"
_PATIENCE_S = 10.0  # for another writer beside the folder


@dataclass(frozen=True)
class SavedBuffer:
    """A buffer on disk but for its pool; `settings` are the constructor's."""

    pool_folder: Path
    step: int
    settings: dict[str, Any]
    ledger: Ledger
    bucketer: DifficultyBucketer
    rng: np.random.Generator


def save(folder: Path, held: Holdings, settings: Mapping[str, Any], step: int, rng: np.random.Generator) -> None:
    """Write a buffer; `step` is its policy_snapshot. OSError leaves what was there."""
    held.ledger.reconcile(held.pool)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with durable.exclusive(folder.parent, _PATIENCE_S):
        durable.finish_replacement(folder / POOL)
        files = {
            "rollouts": _write(folder, "rollouts", _rollouts(held.ledger)),
            "windows": _write(folder, "windows", _windows(held.bucketer)),
        }
        metric = held.bucketer.metric
        state = {
            "settings": dict(settings),
            "metric": _FUNCTION if callable(metric) else metric,
            "window_size": held.bucketer.window_size,
            "rng": rng.bit_generator.state,
            "files": files,
        }
        held.pool.save(folder / POOL, step, IDENTITY, state)
        for stem, entry in files.items():
            for path in folder.glob(f"{stem}-{'[0-9a-f]' * 16}.parquet*"):
                if path.name != entry["file"]:
                    path.unlink()


def read(folder: Path, metric: Measure | None) -> SavedBuffer:
    """What `save` wrote, but for the pool. Raises as TrajectoryBuffer.load."""
    folder = folder.absolute()
    durable.finish_replacement(folder / POOL)
    manifest = pool_files.read_manifest(folder / POOL)
    pool_files.compare(folder / POOL, manifest["identity"], IDENTITY)
    state = manifest["replay_state"]
    if callable(metric) != (state["metric"] == _FUNCTION):
        raise ValueError(f"metric={metric!r}: {folder} was saved with {state['metric']}: must be given for a function")
    bucketer = DifficultyBucketer(metric or state["metric"], state["window_size"])
    windows = _read(folder, state["files"]["windows"])
    bucketer.restore(dict(zip(windows["question"].to_pylist(), windows["measures"].to_pylist(), strict=True)))
    ledger = Ledger()
    for row in _read(folder, state["files"]["rollouts"]).to_pylist():
        text = None if row["text"] is None else row["text"].decode(errors="surrogatepass")
        ledger.restore(row["question"], row["key"], Entry(text, row["reward"], row["entropy"]))
    rng = np.random.default_rng()
    rng.bit_generator.state = state["rng"]
    return SavedBuffer(folder / POOL, manifest["step"], state["settings"], ledger, bucketer, rng)


def _rollouts(ledger: Ledger) -> Any:
    import pyarrow as pa

    rows = [(prompt, key, entry) for prompt, entries in ledger.items() for key, entry in entries.items()]
    # Bytes, since a response may hold lone surrogates, which no UTF-8 string can.
    texts = [None if entry.text is None else entry.text.encode(errors="surrogatepass") for _, _, entry in rows]
    return pa.table(
        {
            "question": pa.array([prompt for prompt, _, _ in rows], pa.string()),
            "key": pa.array([key for _, key, _ in rows], pa.binary()),
            "text": pa.array(texts, pa.binary()),
            "reward": pa.array([entry.reward for _, _, entry in rows], pa.float64()),
            "entropy": pa.array([entry.entropy for _, _, entry in rows], pa.float64()),
        }
    )


def _windows(bucketer: DifficultyBucketer) -> Any:
    import pyarrow as pa

    windows = bucketer.windows()
    measures = pa.array(windows.values(), pa.list_(pa.float64()))
    return pa.table({"question": pa.array(windows, pa.string()), "measures": measures})


def _write(folder: Path, stem: str, table: Any) -> dict[str, str]:
    """Write a table under a name of its content, beside what is there; returns the name and the SHA-256."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    checksum = hashlib.sha256(content).hexdigest()
    path = folder / f"{stem}-{checksum[:16]}.parquet"
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    durable.sync(folder)
    return {"file": path.name, "sha256": checksum}


def _read(folder: Path, entry: Mapping[str, str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / entry["file"]
    if not path.is_file():
        raise DamagedPool(f"saved buffer {folder}: {path.name} is missing")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != entry["sha256"]:
        raise DamagedPool(f"saved buffer {folder}: sha256 of {path.name} is {found}, expected {entry['sha256']}")
    return pq.ParquetFile(pa.BufferReader(content)).read()
