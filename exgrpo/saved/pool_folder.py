"""A pool to a folder and back; exgrpo.saved.pool_files says what is in the folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.saved import durable, pool_files, pool_writer


class PoolFolder:
    """Saves one pool, again and again; what its last save or load has on disk is linked, not written again.

    Owned by whoever owns the pool; it holds paths and checksums, no trajectories.
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
    ) -> None:
        """Write the pool to `folder`, replaced as a whole: a kill at any moment leaves the old state or the new one.

        Args:
            step: the global step it is the state after.
            identity: what the pool belongs to, such as the data set's fingerprint; JSON values, which `load` asks for.
            replay_state: what the caller must remember with it; JSON values, in the manifest.

        Raises:
            OSError: the disk is full, the folder read-only, another process is writing; what was there is intact.
        """
        facts = {"rollout_n": pool.rollout_n, "step": step, "identity": identity, "replay_state": replay_state}
        self._on_disk = pool_writer.save(Path(folder), pool.snapshot(), self._on_disk, facts)

    def load(
        self, folder: str | os.PathLike[str], config: ExperienceConfig, step: int, identity: Mapping[str, object]
    ) -> ExperiencePool:
        """The pool that was saved to `folder`; it makes the same next draws. `config`'s bounds on size hold at once.

        Args:
            step: the one it must be the state after.
            identity: what it must belong to; facts that are not named here are not asked for.

        Raises:
            FileNotFoundError: there is none.
            DamagedPool: naming the file.
            ValueError: format, rollout_n, step or identity differ; both sides are in the message.
        """
        durable.finish_replacement(Path(folder))
        saved = pool_files.read_saved(Path(folder).absolute())
        pool_files.compare(saved.folder, saved.manifest, {"rollout_n": config.rollout_n, "step": step})
        pool_files.compare(saved.folder, saved.manifest["identity"], identity)
        pool = ExperiencePool.restore(
            config,
            saved.state,
            saved.history,
            saved.records(),
            saved.manifest["next_serial"],
            saved.manifest["counters"],
        )
        self._on_disk = saved.on_disk
        return pool
