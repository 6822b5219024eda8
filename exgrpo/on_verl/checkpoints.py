"""verl's checkpoint folder: ``global_step_<n>/`` and a marker that names the latest; the pool is in
``experience/``.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.saved import durable
from exgrpo.saved.pool_files import DamagedPool, read_groups, read_manifest
from exgrpo.saved.pool_folder import PoolFolder

if TYPE_CHECKING:
    from omegaconf import DictConfig

MARKER = "latest_checkpointed_iteration.txt"
POOL = "experience"  # our folder in a checkpoint, besides verl's files
QUEUE = (
    "transfer_queue"  # verl's folder in a checkpoint of an asynchronous mode: the prompts in flight
)
logger = logging.getLogger(__name__)
T = TypeVar("T")


def step_folder(root: Path, step: int) -> Path:
    """The checkpoint folder of a step, by verl's naming."""
    return root / f"global_step_{step}"


def marked_step(root: Path) -> int | None:
    """The step that the marker names; None without a marker, or if a kill left it empty."""
    marker = root / MARKER
    text = marker.read_text().strip() if marker.is_file() else ""
    return int(text) if text.isdigit() else None


def step_to_resume(root: Path) -> int | None:
    """The step that the marker names, or, if it names none that is there, the newest with a
    ``data.pt``.

    verl writes the marker in place, after everything else of a checkpoint and right after
    ``data.pt``: a kill leaves it empty, cut or absent beside a checkpoint that is complete.
    """
    steps, marked = saved_steps(root), marked_step(root)
    whole = (step for step in steps if (step_folder(root, step) / "data.pt").is_file())
    return marked if marked in steps else next(whole, marked)


def mend_marker(root: Path) -> int | None:
    """Rewrite a marker that names no step that is there. Returns the step it then names, or None if
    it is left.
    """
    step, marked = step_to_resume(root), marked_step(root)
    if step is None or step == marked:
        if step is None and saved_steps(root):
            logger.warning("%s: no checkpoint is whole or marked: a new run begins at step 0", root)
        return None
    was = "was empty or absent" if marked is None else f"named step {marked}, which is not there"
    durable.replace_file(root / MARKER, str(step))
    logger.warning("%s %s, now names step %d", root / MARKER, was, step)
    return step


def expect_new(folder: Path) -> None:
    """Call before a step is saved, if it may have been saved before, by a run that was then resumed
    from an older step.

    verl writes ``data.pt`` last. While the old one is there, a kill would leave a marked checkpoint
    that looks complete and has this run's pool with the other one's weights.
    """
    data = folder / "data.pt"
    if data.exists():
        data.unlink()
        durable.sync(folder)


def saved_steps(root: Path) -> list[int]:
    """Steps that have a folder, complete or not, the latest first."""
    numbers = [
        path.name.removeprefix("global_step_")
        for path in root.glob("global_step_*")
        if path.is_dir()
    ]
    return sorted((int(number) for number in numbers if number.isdigit()), reverse=True)


class OpenedExperience(NamedTuple):
    """The replay state that a run starts with.

    Attributes:
        step: the step to resume from; 0 for a new run.
        replay: with the pool and the state of that step.
        folder: saves the pool; knows the segments on disk that the pool was loaded from.
        state: the JSON values saved with the pool, those of `replay` among them; empty for a new
            run.
    """

    step: int
    replay: ExperienceReplay
    folder: PoolFolder
    state: Mapping[str, Any]


def open_experience(
    trainer: DictConfig,
    config: ExperienceConfig,
    identity: Mapping[str, object],
    questions: Collection[str],
    check: Callable[[Path], None] = lambda folder: None,
) -> OpenedExperience:
    """The experience of the checkpoint to resume from, or of a new run, which may import a pool.

    Args:
        trainer: verl's node, for resume_mode, resume_from_path and default_local_dir.
        identity: what the pool must belong to; for an imported pool only data set and tokenizer are
            compared.
        questions: ids of the data set's questions.
        check: raises FileNotFoundError if a checkpoint lacks something that the caller needs.

    Raises:
        FileNotFoundError, ValueError: as resume_latest, or from loading the imported pool.
    """
    pool_folder = PoolFolder()

    def load(folder: Path, step: int) -> OpenedExperience:
        check(folder)
        pool = pool_folder.load(folder / POOL, config, step, identity)
        replay = ExperienceReplay(config, questions, pool)
        state = read_manifest(folder / POOL)["replay_state"]
        replay.restore(state)
        if config.exp_unit == "group":
            replay.groups.hold(read_groups(folder / POOL))
        return OpenedExperience(step, replay, pool_folder, state)

    if trainer.resume_mode == "resume_path":
        folder = Path(trainer.resume_from_path)
        return load(folder, int(folder.name.removeprefix("global_step_")))
    if trainer.resume_mode == "auto":
        resumed = resume_latest(Path(trainer.default_local_dir), load)
        if resumed is not None:
            return resumed
    groups: list[StoredGroup] = []
    if config.experience_import is None:
        pool = ExperiencePool(config)
    else:
        compared = {name: identity[name] for name in ("data_fingerprint", "tokenizer")}
        pool, groups = pool_folder.adopt(config.experience_import, config, compared)
    replay = ExperienceReplay(config, questions, pool)
    replay.groups.hold(groups if config.exp_unit == "group" else [])
    return OpenedExperience(0, replay, pool_folder, {})


def keep_usable(
    replay: ExperienceReplay, questions: Collection[str], max_prompt: int, max_response: int
) -> None:
    """Drop, with a warning, what is not of these questions or longer than these numbers of
    tokens.
    """
    why = "dropped: their question is not in the data, or they are too long"
    if left := replay.pool.keep_only(questions, max_response):
        logger.warning("%d trajectories are %s", left, why)
    if left := replay.groups.keep_only(questions, max_prompt, max_response):
        logger.warning("%d past groups are %s", left, why)


def resume_latest(root: Path, load: Callable[[Path, int], T]) -> T | None:
    """The result of ``load(folder, step)`` for the marked checkpoint; None if there is no
    checkpoint to resume from.

    If the marked checkpoint lacks its weights or its experience is damaged, the latest complete one
    before it is used
    instead: the marker names that one from then on, and a warning says so. Nothing is deleted.

    Raises:
        FileNotFoundError, DamagedPool: no checkpoint is complete; the error of the marked one.
        ValueError: the experience is intact but belongs to something else.
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
            logger.warning(
                "resuming from step %d instead of step %d, which is left as it is", step, marked
            )
        return loaded
    if first is not None:
        raise first
    return None


def _check_whole(root: Path, step: int) -> None:
    """FileNotFoundError if verl had not finished this checkpoint, or if its weights are gone.

    verl writes the weights first, each node on its own disk, and data.pt last. If no step has
    weights on this disk, they are on the disks of the actor's nodes; if any step has, this step's
    must be here too.
    """
    folder = step_folder(root, step)
    if not (folder / "data.pt").exists():
        raise FileNotFoundError(f"{folder} has no data.pt: verl had not finished it")
    if (folder / "actor").exists():
        return
    with_weights = [
        other for other in saved_steps(root) if (step_folder(root, other) / "actor").exists()
    ]
    if with_weights:
        raise FileNotFoundError(
            f"{folder} has no actor, though step {with_weights[0]} has: its weights were deleted"
        )
    logger.warning(
        "%s has no weights on this disk; they must be on the disks of the actor's nodes", folder
    )


class Rotation:
    """Deletes experience and queue of exactly those checkpoints whose weights verl deletes.

    verl keeps the newest ``keep`` checkpoints that its own process has written, and begins a save
    by deleting any older ones. This class counts the same way, since the weights may be on another
    node's disk, which this process cannot see.

    Args:
        root: the folder of the checkpoints.
        keep: ``trainer.max_actor_ckpt_to_keep``: 2 or more; None and -1 keep all, as in verl.
    """

    def __init__(self, root: Path, keep: int | None):
        self._root = root
        self._keep = None if keep == -1 else keep
        self._saved: list[int] = []

    def make_room(self, step: int) -> list[int]:
        """Call just before verl saves ``step``: checkpoints that verl then deletes cannot be
        resumed from anyway.

        Returns the steps that go.
        """
        surplus = max(0, len(self._saved) + 1 - self._keep) if self._keep else 0
        gone, self._saved = self._saved[:surplus], [*self._saved[surplus:], step]
        for old in gone:
            for name in (POOL, QUEUE):
                shutil.rmtree(step_folder(self._root, old) / name, ignore_errors=True)
        return gone


def delete_weights(root: str, steps: Sequence[int]) -> None:
    """Delete the weights of these steps on this machine's disk: verl deletes those on its first
    rank's alone.
    """
    for step in steps:
        shutil.rmtree(step_folder(Path(root), step) / "actor", ignore_errors=True)
