"""verl's checkpoint folder: ``global_step_<n>/`` and a marker that names the latest; the pool is in ``experience/``."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.replay import ExperienceReplay
from exgrpo.saved import durable
from exgrpo.saved.pool_files import DamagedPool, read_manifest
from exgrpo.saved.pool_folder import PoolFolder

if TYPE_CHECKING:
    from omegaconf import DictConfig

MARKER = "latest_checkpointed_iteration.txt"
POOL = "experience"  # what a checkpoint of ours has beside verl's files
logger = logging.getLogger(__name__)
T = TypeVar("T")


def step_folder(root: Path, step: int) -> Path:
    """The checkpoint of a step, as verl names it."""
    return root / f"global_step_{step}"


def marked_step(root: Path) -> int | None:
    """The step the marker names; None without a marker, or with one that a kill left empty."""
    marker = root / MARKER
    text = marker.read_text().strip() if marker.is_file() else ""
    return int(text) if text.isdigit() else None


def mend_marker(root: Path) -> int | None:
    """Rewrite a marker that a kill left empty; the step it names then, None where nothing was to be done.

    verl writes the marker in place, after everything else of a checkpoint, ``data.pt`` being the last before it: where
    the marker is empty, the newest checkpoint with a ``data.pt`` is whole.
    """
    if not (root / MARKER).is_file() or marked_step(root) is not None:
        return None
    steps = [step for step in saved_steps(root) if (step_folder(root, step) / "data.pt").is_file()]
    if not steps:
        return None
    durable.replace_file(root / MARKER, str(steps[0]))
    logger.warning("%s was empty, now names step %d", root / MARKER, steps[0])
    return steps[0]


def saved_steps(root: Path) -> list[int]:
    """Steps that have a folder, whole or not, the latest first."""
    numbers = [path.name.removeprefix("global_step_") for path in root.glob("global_step_*") if path.is_dir()]
    return sorted((int(number) for number in numbers if number.isdigit()), reverse=True)


class OpenedExperience(NamedTuple):
    """What a run begins with.

    Attributes:
        step: the one to go on from; 0 for a new run.
        replay: with the pool and the state of that step.
        folder: saves the pool, and has on disk what it was loaded from.
    """

    step: int
    replay: ExperienceReplay
    folder: PoolFolder


def open_experience(
    trainer: DictConfig,
    config: ExperienceConfig,
    identity: Mapping[str, object],
    questions: Collection[str],
    check: Callable[[Path], None] = lambda folder: None,
) -> OpenedExperience:
    """The experience of the checkpoint to go on from, or that of a new run, which may import a pool.

    Args:
        trainer: verl's node, for resume_mode, resume_from_path and default_local_dir.
        identity: what the pool must belong to; of an imported one, the data set and the tokenizer are asked for.
        questions: ids of the data's.
        check: raises FileNotFoundError for a checkpoint that lacks what the caller needs of it.

    Raises:
        FileNotFoundError, ValueError: as resume_latest, or of the imported pool.
    """
    pool_folder = PoolFolder()

    def load(folder: Path, step: int) -> OpenedExperience:
        check(folder)
        pool = pool_folder.load(folder / POOL, config, step, identity)
        replay = ExperienceReplay(config, questions, pool)
        replay.restore(read_manifest(folder / POOL)["replay_state"])
        return OpenedExperience(step, replay, pool_folder)

    if trainer.resume_mode == "resume_path":
        folder = Path(trainer.resume_from_path)
        return load(folder, int(folder.name.removeprefix("global_step_")))
    if trainer.resume_mode == "auto":
        resumed = resume_latest(Path(trainer.default_local_dir), load)
        if resumed is not None:
            return resumed
    pool = None
    if config.experience_import is not None:
        belongs = {name: identity[name] for name in ("data_fingerprint", "tokenizer")}
        pool = pool_folder.load(config.experience_import, config, 0, belongs)
    return OpenedExperience(0, ExperienceReplay(config, questions, pool), pool_folder)


def resume_latest(root: Path, load: Callable[[Path, int], T]) -> T | None:
    """What ``load(folder, step)`` makes of the marked checkpoint; None where there is none to go on from.

    If that one lacks its weights, or its experience is damaged, the latest before it that is whole takes its place: the
    marker names it from then on, and a warning says so. Nothing is deleted.

    Raises:
        FileNotFoundError, DamagedPool: none is whole; of the marked one.
        ValueError: the experience is whole but belongs to something else.
    """
    mend_marker(root)
    marked = marked_step(root)
    if marked is None:
        return None
    first: Exception | None = None
    for step in (step for step in saved_steps(root) if step <= marked):
        try:
            _check_whole(root, step)
            loaded = load(step_folder(root, step), step)
        except (FileNotFoundError, DamagedPool) as error:
            logger.error("checkpoint of step %d cannot be used: %s", step, error)
            first = first or error
            continue
        if step != marked:
            durable.replace_file(root / MARKER, str(step))
            logger.warning("going on from step %d instead of step %d, which is left as it is", step, marked)
        return loaded
    if first is not None:
        raise first
    return None


def _check_whole(root: Path, step: int) -> None:
    """A checkpoint that verl had not finished, or whose weights are gone, is none to go on from.

    verl writes the weights first, each node on its own disk, and data.pt last. Where no step has weights on this disk,
    they are on those of the actor's nodes; where some step has, this one's must be here too.
    """
    folder = step_folder(root, step)
    if not (folder / "data.pt").exists():
        raise FileNotFoundError(f"{folder} has no data.pt: verl had not finished it")
    if (folder / "actor").exists():
        return
    other = next((other for other in saved_steps(root) if (step_folder(root, other) / "actor").exists()), None)
    if other is not None:
        raise FileNotFoundError(f"{folder} has no actor, though step {other} has: its weights were deleted")
    logger.warning("%s has no weights on this disk; they must be on the disks of the actor's nodes", folder)


class Rotation:
    """Deletes the experience of each checkpoint whose weights verl deletes, and of no other.

    verl keeps the newest ``keep`` of those that its own process has written, and begins a save by deleting what exceeds
    that. The same count is kept here, since the weights may be on another node's disk, where this process cannot look.

    Args:
        root: the folder of the checkpoints.
        keep: ``trainer.max_actor_ckpt_to_keep``: 2 or more; None keeps all.
    """

    def __init__(self, root: Path, keep: int | None):
        self._root, self._keep, self._saved = root, keep, list[int]()

    def make_room(self, step: int) -> None:
        """Call just before verl saves ``step``: what verl deletes then cannot be resumed from anyway."""
        surplus = max(0, len(self._saved) + 1 - self._keep) if self._keep else 0
        for old in self._saved[:surplus]:
            shutil.rmtree(step_folder(self._root, old) / POOL, ignore_errors=True)
        self._saved = [*self._saved[surplus:], step]
