"""Save a pool to a folder and load it; exgrpo.saved.pool_files describes the folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exgrpo.experience import packing
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool, Snapshot
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.question_memory import QuestionMemory
from exgrpo.experience.replay_log import ReplayLog
from exgrpo.saved import durable, pool_files, pool_segments, pool_tables
from exgrpo.saved.pool_segments import Segment


class PoolFolder:
    """Saves one pool repeatedly; segments on disk from its last save or load are linked, not
    written again.

    Owned by the pool's owner; holds paths and checksums, no trajectories.
    """

    def __init__(self) -> None:
        self._on_disk = pool_files.OnDisk()

    def save(
        self,
        pool: ExperiencePool,
        folder: str | os.PathLike[str],
        step: int,
        identity: Mapping[str, object],
        replay_state: Mapping[str, object] | None = None,
        groups: Collection[StoredGroup] = (),
        memory: QuestionMemory | None = None,
    ) -> None:
        """Replace `folder` with the pool atomically: a kill at any moment leaves the old state or
        the new one.

        Args:
            step: the global step after which this is the state.
            identity: what the pool belongs to, such as the data set's fingerprint; JSON values,
                checked by `load`.
            replay_state: state of the caller to save with the pool; JSON values, in the manifest.
            groups: past groups to save with the pool, such as `ExperienceReplay.groups`.
            memory: of the questions, such as `ExperienceReplay.memory`; saved if it knows any.

        Raises:
            OSError: the disk is full, the folder read-only, or another process is writing; the old
                folder is intact.
        """
        facts = {
            "rollout_n": pool.rollout_n,
            "step": step,
            "identity": identity,
            "replay_state": replay_state,
        }
        place, snapshot = Path(folder).absolute(), pool.snapshot()
        previous = self._on_disk if self._on_disk.whole else pool_files.OnDisk()
        written: list[Segment] = []

        def write(fresh: Path) -> None:
            if memory:
                pool_tables.write_memory(fresh / pool_files.MEMORY, memory)
            written.extend(_write(fresh, snapshot, previous, facts, groups))

        durable.replace_folder(place, write)
        self._on_disk = pool_files.OnDisk(place, written)

    def load(
        self,
        folder: str | os.PathLike[str],
        config: ExperienceConfig,
        step: int,
        identity: Mapping[str, object],
    ) -> ExperiencePool:
        """The pool saved in `folder`; its next draws are the same. `config`'s bounds on size apply
        at once.

        Args:
            step: the step that the pool must have been saved after.
            identity: what the pool must belong to; only the facts named here are compared.

        Raises:
            FileNotFoundError: there is no saved pool.
            DamagedPool: a file is damaged; the message names it.
            ValueError: format, rollout_n, step or identity differ; the message has both values.
        """
        place = Path(folder).absolute()

        def read() -> ExperiencePool:
            saved = pool_files.read_saved(place)
            facts = {"rollout_n": config.rollout_n, "step": step}
            pool_files.compare(saved.folder, saved.manifest, facts)
            pool_files.compare(saved.folder, saved.manifest["identity"] or {}, identity)
            return self.restored(saved, config)

        return durable.steadily(place, read)

    def restored(self, saved: pool_files.SavedPool, config: ExperienceConfig) -> ExperiencePool:
        """The pool whose tables are in `saved`; reads its segments. DamagedPool as `load`."""
        with pool_files.parsing(saved.folder):
            pool = _restored(saved, config, saved.records(), saved.history, saved.replays)
        self._on_disk = saved.on_disk
        return pool

    def adopt(
        self,
        folder: str | os.PathLike[str],
        config: ExperienceConfig,
        identity: Mapping[str, object],
    ) -> tuple[ExperiencePool, list[StoredGroup]]:
        """The pool and the past groups that another run has saved in `folder`, with which a new run
        begins at step 0.

        Buckets and retired questions are that run's. All trajectories and groups are of step 0 from
        here on, so that ages count from the new run's start; its metrics and what it replayed are
        left behind.

        Raises:
            as `load`, whatever the step.
        """
        place = Path(folder).absolute()

        def read() -> tuple[ExperiencePool, list[StoredGroup]]:
            saved = pool_files.read_saved(place)
            pool_files.compare(saved.folder, saved.manifest, {"rollout_n": config.rollout_n})
            pool_files.compare(saved.folder, saved.manifest["identity"] or {}, identity)
            records = (
                (serial, question, packing.at_step(packed, 0))
                for serial, question, packed in saved.records()
            )
            with pool_files.parsing(saved.folder):
                pool = _restored(saved, config, records, [], None)
            return pool, list(map(_at_step_0, pool_files.read_groups(place)))

        return durable.steadily(place, read)


def _at_step_0(group: StoredGroup) -> StoredGroup:
    rollouts = tuple(dataclasses.replace(rollout, step=0) for rollout in group.rollouts)
    return dataclasses.replace(group, step=0, rollouts=rollouts)


def _write(
    folder: Path,
    snapshot: Snapshot,
    previous: pool_files.OnDisk,
    facts: Mapping[str, Any],
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
    pool_tables.write_live(folder / pool_files.LIVE, snapshot.serials)
    questions = folder / pool_files.QUESTIONS
    pool_tables.write_questions(questions, snapshot.state, facts["rollout_n"])
    pool_tables.write_history(folder / pool_files.HISTORY, snapshot.history)
    pool_tables.write_replays(folder / pool_files.REPLAYED, snapshot.replays)
    if groups:
        pool_tables.write_groups(folder / pool_files.GROUPS, groups)
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
    pool_files.write_manifest(folder, manifest)
    return segments


def _restored(
    saved: pool_files.SavedPool,
    config: ExperienceConfig,
    records: Iterable[tuple[int, str, bytes]],
    history: Sequence[Mapping[str, float]],
    replays: ReplayLog | None,
) -> ExperiencePool:
    kept = {name: saved.manifest[name] for name in ("next_serial", "counters")}
    return ExperiencePool.restore(config, saved.state, history, records, **kept, replays=replays)
