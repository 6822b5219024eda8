"""Take trajectories out of a saved pool, and put them back: the pool as it was stays whole inside
the new one.

quarantine/record.json   what was asked and what was taken out
quarantine/*             all files of the pool as it was, but for its segments, which both pools
share
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo.experience.experience_bucket_manager import ExperienceBucketManager
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.saved import durable, pool_files, pool_tables
from exgrpo.saved.pool_files import SavedPool

FOLDER = "quarantine"
RECORD = "record.json"


def take_out(
    saved: SavedPool,
    serials: Collection[int],
    tokens: int,
    emptied: Collection[str],
    record: Mapping[str, Any],
    groups: Collection[StoredGroup] = (),
) -> None:
    """Replace a saved pool with one that lacks these trajectories; a kill leaves the old one or the
    new one.

    Args:
        serials: of the trajectories to take out; `tokens` is the number of their tokens.
        emptied: the questions that are left without trajectories.
        record: JSON values, kept beside the pool as it was.
        groups: the past groups that are left.

    Raises:
        OSError: the pool is as it was.
    """
    left = np.setdiff1d(saved.serials, np.array(list(serials), dtype=np.int64))
    rollout_n = saved.manifest["rollout_n"]
    buckets = ExperienceBucketManager.from_state(rollout_n, saved.state)
    for question in emptied:
        buckets.remove(question)
    state = buckets.state()
    counts = dict(saved.manifest["counts"])
    counts["trajectories"] = len(left)
    counts["tokens"] -= tokens
    counts["questions"] = len(state.questions)
    if "groups" in counts:
        counts["groups"] = len(groups)

    def fill(fresh: Path) -> None:
        before = _keep(saved.folder, fresh)
        written = {pool_files.LIVE, pool_files.QUESTIONS, pool_files.GROUPS}
        for name in set(saved.manifest["sha256"]) - written:
            durable.link(saved.folder / name, fresh / name)
        if groups:
            pool_tables.write_groups(fresh / pool_files.GROUPS, groups)
        (before / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        pool_tables.write_live(fresh / pool_files.LIVE, left)
        pool_tables.write_questions(fresh / pool_files.QUESTIONS, state, rollout_n)
        changed = {"counts": counts, "quarantined": saved.quarantined + len(serials)}
        pool_files.write_manifest(fresh, saved.manifest | changed)

    durable.replace_folder(saved.folder, fill)


def put_back(folder: Path) -> dict[str, Any]:
    """Undo the last `take_out`: the pool has the very files that it had. Returns that one's record.

    Raises:
        FileNotFoundError: nothing was taken out of this pool.
    """
    kept = durable.newest(folder) / FOLDER / RECORD
    if not kept.is_file():
        raise FileNotFoundError(f"CHECKPOINT={folder}: nothing is in quarantine")
    record: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    before = folder / FOLDER

    def fill(fresh: Path) -> None:
        _link_all(folder / pool_files.TRAJECTORIES, fresh / pool_files.TRAJECTORIES)
        for path in before.iterdir():
            if path.is_dir():
                _link_all(path, fresh / path.name)
            elif path.name != RECORD:
                durable.link(path, fresh / path.name)

    durable.replace_folder(folder, fill)
    return record


def _keep(folder: Path, fresh: Path) -> Path:
    """Link the pool as it is into a folder of the fresh one, and its trajectories in place."""
    before = fresh / FOLDER
    before.mkdir()
    for path in folder.iterdir():
        if path.name == pool_files.TRAJECTORIES:
            _link_all(path, fresh / path.name)
        elif path.name == FOLDER:
            _link_all(path, before / path.name)
        else:
            durable.link(path, before / path.name)
    return before


def _link_all(source: Path, target: Path) -> None:
    shutil.copytree(
        source, target, copy_function=lambda old, new: durable.link(Path(old), Path(new))
    )
