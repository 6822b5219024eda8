"""The saved form of a pool: a folder that is replaced atomically; only new trajectories are
written, others linked.

trajectories/*.parquet   serial, question, step, entropy, tokens, log_probs, loss_mask, reward,
                         note, grader: segments, most of them linked from the previous checkpoint
                         (pool_segments); null are log_probs that were not recorded, a loss_mask
                         where every token is the policy's, a grader that is unknown
live.parquet             serial: the trajectories in the pool, in the order of recording
questions.parquet        question, bucket, position, retired: in order of entry, retired ones last
history.parquet          step and the metrics of each step
replayed.parquet         what each step replayed and why (pool_tables)
groups.parquet           whole past groups, if there are any (pool_tables)
memory.parquet           what rules know of each question, if one looks at it (pool_tables)
manifest.json            format_version, step, rollout_n, identity, counts, counters, next_serial,
                         segments, sha256, checksum, and replay_state: mixing, rng, deferred,
                         skipped, odds (ExperienceReplay.state), run, prompts in flight; of a
                         question rule with a memory question_choice

pandas.read_parquet(f"{pool}/trajectories").merge(pandas.read_parquet(f"{pool}/live.parquet"))
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience import checked
from exgrpo.experience.experience_bucket_manager import BucketState
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.packing import key, length, unpack
from exgrpo.experience.question_memory import COLUMNS
from exgrpo.experience.replay_log import ReplayLog
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved import durable, pool_segments, pool_tables
from exgrpo.saved.pool_segments import Segment

FORMAT_VERSION = 4
MANIFEST = "manifest.json"
TRAJECTORIES = "trajectories"
LIVE = "live.parquet"
QUESTIONS = "questions.parquet"
HISTORY = "history.parquet"
REPLAYED = "replayed.parquet"
GROUPS = "groups.parquet"
MEMORY = "memory.parquet"
_OPTIONAL = {GROUPS, MEMORY}
TABLES = (LIVE, QUESTIONS, HISTORY, REPLAYED, GROUPS, MEMORY)
_READERS = 4  # at most this many segments in memory at a time, besides the pool


class DamagedPool(ValueError):
    """A saved pool differs from what was written: a file is missing, truncated or changed."""


@contextlib.contextmanager
def parsing(folder: Path) -> Iterator[None]:
    """Within it, content that no pool can have raises DamagedPool."""
    wrong = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)
    try:
        yield
    except DamagedPool:
        raise
    except (OSError, struct.error, *wrong) as error:
        if getattr(error, "errno", None) is not None:
            raise  # of the disk; pyarrow's have no number
        said = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise DamagedPool(f"saved pool {folder}: holds what no pool can have ({said})") from error


@dataclass(frozen=True)
class OnDisk:
    """Where the segments of a pool's last save are, so that the next save can link them."""

    folder: Path | None = None
    segments: Sequence[Segment] = ()

    @property
    def whole(self) -> bool:
        return self.folder is not None and all(
            self.path(segment).is_file() for segment in self.segments
        )

    def path(self, segment: Segment) -> Path:
        assert self.folder is not None  # nothing on disk has no segments
        return self.folder / TRAJECTORIES / segment.file


@dataclass(frozen=True)
class SavedPool:
    """A pool on disk, its tables read and verified; `records` reads the segments.

    Attributes:
        folder: of the saved pool.
        manifest: see the module docstring.
        state: buckets and retired questions.
        history: the metrics of each step, by their names in docs/metrics.md without the prefix.
        replays: what was replayed, by step.
        serials: of the trajectories in the pool, ascending.
    """

    folder: Path
    manifest: dict[str, Any]
    state: BucketState
    history: list[dict[str, float]]
    replays: ReplayLog
    serials: npt.NDArray[np.int64]

    @property
    def quarantined(self) -> int:
        """Trajectories that were taken out of it and can be put back (exgrpo-inspect --undo)."""
        return int(self.manifest.get("quarantined", 0))

    @property
    def segments(self) -> list[Segment]:
        return [Segment(**segment) for segment in self.manifest["segments"]]

    @property
    def on_disk(self) -> OnDisk:
        """The segments that a later save may link."""
        return OnDisk(self.folder, self.segments)

    def records(self) -> Iterator[tuple[int, str, bytes]]:
        """(serial, question, packed trajectory) of all trajectories in the pool, in the order of
        recording.

        Raises DamagedPool at the first segment that differs from what was written.
        """
        count, last, tokens, expected = 0, -1, 0, len(self.serials)
        keys = set()
        interned = {each: each for each in self.state.questions}  # one string object per question
        with parsing(self.folder):
            for batch in self._batches():
                for serial, question, packed in pool_segments.packed_records(batch, self.serials):
                    if serial <= last:
                        raise ValueError(f"serial {serial} after {last}")
                    count, last, tokens = count + 1, serial, tokens + length(packed)
                    keys.add((question, hash(key(packed))))
                    yield serial, interned[question], packed
            if count != expected:
                raise DamagedPool(
                    f"saved pool {self.folder}: its segments hold {count} of {expected} "
                    "trajectories"
                )
            if len(keys) != count or tokens != self.manifest["counts"]["tokens"]:
                raise ValueError(f"{len(keys)} different trajectories of {tokens} tokens")

    def _batches(self) -> Iterator[Any]:
        """Batches of all segments, in order; threads verify and decode some ahead."""
        workers = min(_READERS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(workers) as pool:
            reading: deque[Future[list[Any]]] = deque()
            for segment in self.segments:
                reading.append(pool.submit(self._read, segment))
                if len(reading) > workers:
                    yield from reading.popleft().result()
            while reading:
                yield from reading.popleft().result()

    def _read(self, segment: Segment) -> list[Any]:
        path = durable.newest(self.folder) / TRAJECTORIES / segment.file
        batches = list(pool_segments.batches(checked_bytes(path, segment.sha256)))
        for batch in batches:
            pool_segments.check_rows(batch)
        return batches

    def trajectories(self) -> Iterator[tuple[str, Trajectory]]:
        """(question, trajectory), as `records`."""
        return ((question, unpack(packed)) for _, question, packed in self.records())


def read_saved(folder: Path) -> SavedPool:
    """The pool saved in `folder`, whichever data set it belongs to.

    Read only, beside a writer too: of an interrupted replacement, the state that is whole.

    Raises:
        FileNotFoundError: there is no saved pool.
        DamagedPool: a file is missing or changed, or its checksum differs; the message names it.
        ValueError: another format version; the message has both.
    """
    return durable.steadily(folder, lambda: _read_saved(folder))


def _read_saved(folder: Path) -> SavedPool:
    manifest = read_manifest(folder)
    there = durable.newest(folder)
    checksums = {name: manifest["sha256"][name] for name in TABLES if name not in _OPTIONAL}
    with parsing(folder):
        contents = {
            name: table(checked_bytes(there / name, checksum))
            for name, checksum in checksums.items()
        }
        serials = pool_tables.read_live(contents[LIVE])
        state = pool_tables.read_questions(contents[QUESTIONS])
        rows = pool_tables.read_history(contents[HISTORY])
        replays = pool_tables.read_replays(contents[REPLAYED])
        counts = manifest["counts"]
        found = [len(serials), len(state.questions), len(state.retired)]
        if found != [counts[name] for name in ("trajectories", "questions", "retired")]:
            raise ValueError(f"{found} trajectories, questions, retired ones; counts has {counts}")
        if serials.max(initial=-1) >= manifest["next_serial"]:
            raise ValueError(f"next_serial is {manifest['next_serial']}, not beyond all serials")
    return SavedPool(folder, manifest, state, rows, replays=replays, serials=serials)


def check(folder: Path) -> dict[str, Any]:
    """The manifest of a saved pool of which every file has its checksum; errors as read_saved."""
    manifest, there = read_manifest(folder), durable.newest(folder)
    sums = {there / name: checksum for name, checksum in manifest["sha256"].items()}
    sums |= {there / TRAJECTORIES / each["file"]: each["sha256"] for each in manifest["segments"]}
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(checked_bytes, sums, sums.values()))
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a saved pool; errors as read_saved."""
    there = durable.newest(folder)
    path = there / MANIFEST
    if not there.is_dir():
        raise FileNotFoundError(f"no saved pool in {folder}")
    if not path.is_file():
        raise DamagedPool(f"saved pool {folder}: {MANIFEST} is missing")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, checksum = manifest.get("format_version"), manifest.pop("checksum", None)
        actual = checksum_of(manifest)
    except (ValueError, AttributeError, RecursionError) as error:
        raise DamagedPool(f"saved pool {folder}: {MANIFEST} cannot be read ({error})") from error
    if checksum != actual:  # before the version, in which a bit may have flipped
        raise DamagedPool(
            f"saved pool {folder}: checksum of {MANIFEST} is {actual}, expected {checksum}"
        )
    if version != FORMAT_VERSION:
        raise ValueError(
            f"saved pool {folder}: format_version is {version!r}, expected {FORMAT_VERSION}"
        )
    with parsing(folder):
        _check_manifest(manifest)
    return manifest


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """Types and ranges of what a load reads."""
    named, counts = manifest["sha256"].keys(), manifest["counts"]
    if not set(TABLES) - _OPTIONAL <= named <= set(TABLES):
        raise ValueError(f"sha256 names {sorted(named)}")
    numbers = {**counts, **manifest["counters"]}
    numbers |= {name: manifest[name] for name in ("step", "next_serial")}
    for name, number in numbers.items():
        checked.integer(name, number, 0)
    checked.integer("rollout_n", manifest["rollout_n"], 1)
    if not {"questions", "retired", "trajectories", "tokens"} <= counts.keys():
        raise ValueError(f"counts has {sorted(counts)}")
    for entry in manifest["segments"]:
        if Segment(**entry).file != f"segment-{entry['first']:012d}.parquet":
            raise ValueError(f"segments names {entry['file']!r}")
    for name in ("identity", "replay_state"):
        if not isinstance(manifest[name], dict | None):
            raise TypeError(f"{name} is {manifest[name]!r}")


def read_groups(folder: Path) -> list[StoredGroup]:
    """The past groups saved with a pool, from the oldest to the newest; errors as read_saved."""
    manifest = read_manifest(folder)
    if GROUPS not in manifest["sha256"]:
        return []
    content = checked_bytes(durable.newest(folder) / GROUPS, manifest["sha256"][GROUPS])
    with parsing(folder):
        groups = pool_tables.read_groups(content, manifest["counts"]["groups"])
        if any(len(group.rollouts) > manifest["rollout_n"] for group in groups):
            raise ValueError(f"a group of more than {manifest['rollout_n']} rollouts")
    return groups


def read_memory(folder: Path) -> tuple[list[str], npt.NDArray[np.float64]]:
    """What was remembered with a pool: questions and columns, for `QuestionMemory.hold`; errors as
    read_saved.
    """
    manifest = read_manifest(folder)
    if MEMORY not in manifest["sha256"]:
        return [], np.empty((0, len(COLUMNS)))
    content = checked_bytes(durable.newest(folder) / MEMORY, manifest["sha256"][MEMORY])
    with parsing(folder):
        return pool_tables.read_memory(table(content))


def compare(folder: Path, saved: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """ValueError, with both values, at the first `expected` fact that differs in the pool."""
    for name, value in expected.items():
        if saved.get(name) != value:
            raise ValueError(
                f"saved pool {folder}: {name} is {saved.get(name)!r}, expected {value!r}"
            )


def checked_bytes(path: Path, checksum: str, what: str = "saved pool") -> bytes:
    """A file's bytes; DamagedPool, which names `what`, if their checksum is another."""
    if not path.is_file():
        raise DamagedPool(f"{what} {path.parent}: {path.name} is missing")
    content = path.read_bytes()
    actual = hashlib.sha256(content).hexdigest()
    if actual != checksum:
        raise DamagedPool(
            f"{what} {path.parent}: sha256 of {path.name} is {actual}, expected {checksum}"
        )
    return content


def table(content: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # pq.read_table imports pyarrow.dataset, 0.2 s
    return pq.ParquetFile(pa.BufferReader(content)).read()


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """The manifest, last: with the checksums of the tables in `folder` and its own."""
    names = [name for name in TABLES if (folder / name).is_file()]
    whole = {**manifest, "sha256": {name: durable.sha256(folder / name) for name in names}}
    whole["checksum"] = checksum_of(whole)
    text = json.dumps(whole, indent=1, sort_keys=True) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def checksum_of(manifest: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
