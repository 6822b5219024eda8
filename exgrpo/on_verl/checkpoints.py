"""verl's checkpoints: ``global_step_<n>/``, our pool in its ``experience/``, and a marker."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.question_id import fingerprint, tokenizer_fingerprint
from exgrpo.on_verl import seals
from exgrpo.on_verl.seals import DamagedCheckpoint
from exgrpo.saved import durable, pool_files
from exgrpo.saved.pool_files import DamagedPool, read_groups, read_manifest, read_memory
from exgrpo.saved.pool_folder import PoolFolder

if TYPE_CHECKING:
    from omegaconf import DictConfig

MARKER = "latest_checkpointed_iteration.txt"
POOL = seals.POOL
QUEUE = "transfer_queue"  # verl's folder, of an asynchronous mode: the prompts in flight
_is_step = re.compile("[0-9]{1,18}").fullmatch  # to str.isdigit "²" is one, to int not
logger = logging.getLogger(__name__)
T = TypeVar("T")


def step_folder(root: Path, step: int) -> Path:
    """The checkpoint folder of a step, by verl's naming."""
    return root / f"global_step_{step}"


def marked_step(root: Path) -> int | None:
    """The step that the marker names; None without a marker, or if it holds no number."""
    marker = root / MARKER
    text = marker.read_text(errors="replace").strip() if marker.is_file() else ""
    return int(text) if _is_step(text) else None


def candidates(root: Path) -> list[int]:
    """The steps that a run may go on from, the first choice first: the marked one, those before it,
    and those of which its marker, which verl writes in place, may be what a kill left ("4" of
    "40"). If it names no step that is there, all steps are candidates.
    """
    steps, marked = saved_steps(root), marked_step(root)
    if marked is None or marked not in steps:
        return steps
    torn = [step for step in steps if step > marked and str(step).startswith(str(marked))]
    return [step for step in steps if step <= marked] + torn


def expect_new(folder: Path) -> None:
    """Call before a step is saved: a run that was resumed from an older step may have saved it.

    verl writes ``data.pt`` last. While the old one is there, a kill would leave a marked checkpoint
    that seems complete and has this run's pool with the other one's weights. A note that optimizer
    states were deleted goes too: it gets new ones.
    """
    for name in ("data.pt", seals.SEAL, seals.STATES_DELETED):
        if (folder / name).exists():
            (folder / name).unlink()
            durable.sync(folder)


def saved_steps(root: Path) -> list[int]:
    """Steps that have a folder, complete or not, the latest first."""
    folders = [path for path in root.glob("global_step_*") if path.is_dir()]
    numbers = [folder.name.removeprefix("global_step_") for folder in folders]
    return sorted((int(number) for number in numbers if _is_step(number)), reverse=True)


class OpenedExperience(NamedTuple):
    """The replay state that a run starts with.

    Attributes:
        step: the step to resume from; 0 for a new run.
        folder: saves the pool; knows the segments on disk that the pool was loaded from.
        state: the JSON values saved with the pool. For a new run only `run`, the id that its pools
            and seals will name.
    """

    step: int
    replay: ExperienceReplay
    folder: PoolFolder
    state: Mapping[str, Any]


def identity_of(
    ids: Sequence[str], tokenizer: Any, questions: Collection[str]
) -> dict[str, object]:
    """What a pool must belong to, from the ids of the files' questions and of those in use."""
    return {
        "data_fingerprint": fingerprint(ids),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "questions": len(questions),  # after verl's length filter
    }


def open_experience(
    trainer: DictConfig,
    config: ExperienceConfig,
    identity: Mapping[str, object],
    questions: Collection[str],
    check: Callable[[Path], None] = lambda folder: None,
) -> OpenedExperience:
    """The experience of the checkpoint to resume from, or of a new run, which may import a pool.

    Args:
        trainer: verl's node.
        identity: what the pool must belong to; an imported one to data set and tokenizer alone.
        questions: ids of the data set's questions.
        check: raises FileNotFoundError if a checkpoint lacks something that the caller needs.

    Raises:
        FileNotFoundError, ValueError: as `resume_latest`, or from loading the imported pool.
    """
    pool_folder, new_run = PoolFolder(), {"run": uuid.uuid4().hex}

    def load(folder: Path, step: int) -> OpenedExperience:
        check(folder)
        pool = pool_folder.load(folder / POOL, config, step, identity)
        replay = ExperienceReplay(config, questions, pool)
        state = read_manifest(folder / POOL)["replay_state"]
        with pool_files.parsing(folder / POOL):
            replay.restore(state)
        if config.keeps_groups:
            replay.groups.hold(read_groups(folder / POOL))
        if config.remembers:
            replay.memory.hold(*read_memory(folder / POOL))
        # the bound on age may be a new one
        pool.expire(step)
        replay.groups.expire(step)
        return OpenedExperience(step, replay, pool_folder, new_run | state)

    if trainer.resume_mode == "resume_path":
        folder = Path(trainer.resume_from_path)
        return load(folder, _step_of(folder))
    if trainer.resume_mode == "auto":
        others = partial(check_whole, with_pool=True)
        resumed = resume_latest(Path(trainer.default_local_dir), load, others)
        if resumed is not None:
            return resumed
    groups: list[StoredGroup] = []
    if config.experience_import is None:
        pool = ExperiencePool(config)
    else:
        compared = {name: identity[name] for name in ("data_fingerprint", "tokenizer")}
        pool, groups = pool_folder.adopt(config.experience_import, config, compared)
    replay = ExperienceReplay(config, questions, pool)
    replay.groups.hold(groups if config.keeps_groups else [])
    return OpenedExperience(0, replay, pool_folder, new_run)


def keep_usable(
    replay: ExperienceReplay, questions: Collection[str], max_prompt: int, max_response: int
) -> None:
    """Drop, with a warning, what is of other questions or longer than so many tokens."""
    why = "dropped: their question is not in the data, or they are too long"
    if left := replay.pool.keep_only(questions, max_response):
        logger.warning("%d trajectories are %s", left, why)
    if left := replay.groups.keep_only(questions, max_prompt, max_response):
        logger.warning("%d past groups are %s", left, why)


def only_writer(root: Path) -> ExitStack:
    """Keeps other runs from writing into the folder, as long as it is referred to."""
    root.mkdir(parents=True, exist_ok=True)
    alone = ExitStack()
    # a killed run may be ending
    alone.enter_context(durable.exclusive_on_all_hosts(root, patience_s=30))
    return alone


def mark_checkpoint_to_resume(
    trainer: Mapping[str, Any],
    with_pool: bool,
    check: Callable[[Path], None],
    contents: Collection[str] = ("model", "optimizer", "extra"),
) -> None:
    """Find out, before Ray starts, which checkpoint the run goes on from: the marker names it from
    here on. All that is on this disk of a checkpoint is read, as verl will read it once more.

    Args:
        trainer, check: as in `open_experience`.
        with_pool: a checkpoint without experience is none.
        contents: verl's ``load_contents``, of which an unsealed checkpoint must have all files.

    Raises:
        OSError, ValueError: none can be used, or another process writes there; in one line.
    """

    root = Path(str(trainer["default_local_dir"]))
    marked = marked_step(root)
    run = None if marked is None else seals.run_of(step_folder(root, marked))

    def whole(folder: Path, step: int) -> None:
        check(folder)
        other = seals.run_of(folder)
        if folder.parent == root and step != marked and None not in (run, other) and run != other:
            raise DamagedCheckpoint(f"{folder}: of run {other}, {root / MARKER} names one of {run}")
        check_whole(folder, step, with_pool, contents, int(trainer.get("nnodes") or 1))

    # a killed run may be ending
    alone = durable.exclusive_on_all_hosts(root, patience_s=30) if root.is_dir() else nullcontext()
    with alone:
        if trainer["resume_mode"] == "resume_path":
            folder = Path(str(trainer["resume_from_path"]))
            _check_there(folder)
            whole(folder, _step_of(folder))
        elif trainer["resume_mode"] == "auto" and saved_steps(root):
            resume_latest(root, whole)
            marked = marked_step(root)
            newer = [step for step in saved_steps(root) if step > (marked or 0)]
            if newer and marked is not None:
                left = f"newer steps are left as they are: {newer}"
                logger.warning("%s names step %d; %s", root / MARKER, marked, left)


def check_whole(
    folder: Path,
    step: int,
    with_pool: bool,
    contents: Collection[str] = ("model", "optimizer", "extra"),
    nodes: int = 1,
) -> None:
    """Read a checkpoint and compare it with its seal, and its pool with the pool's manifest.

    Args: contents, nodes: as in `seals.check`.

    Raises:
        FileNotFoundError, DamagedCheckpoint, DamagedPool: naming what is missing or damaged.
    """
    seal = seals.check(folder, step, contents, nodes)
    if not with_pool:
        return
    if not durable.newest(folder / POOL).is_dir():
        raise FileNotFoundError(
            f"{folder}: a checkpoint without experience; set trainer.experience=False, "
            "trainer.resume_mode=disable, or give a checkpoint of an ExGRPO run"
        )
    manifest = pool_files.check(folder / POOL)
    state = manifest["replay_state"] or {}
    if state.get("prompts") and not (folder / QUEUE).is_dir():
        raise DamagedCheckpoint(f"{folder}: without {QUEUE}/, which holds the prompts in flight")
    run = state.get("run")
    theirs, ours = (run, manifest["step"]), (seal.get("run", run), step)
    if theirs != ours:
        raise DamagedPool(
            f"saved pool {folder / POOL}: of run {theirs[0]}, step {theirs[1]}, its checkpoint is "
            f"of run {ours[0]}, step {ours[1]}"
        )


def resume_latest(
    root: Path,
    load: Callable[[Path, int], T],
    check_other: Callable[[Path, int], None] = lambda folder, step: None,
) -> T | None:
    """The result of ``load(folder, step)`` for the marked checkpoint, or else for the first other
    candidate that can be used, which the marker then names, with a warning. Nothing is deleted.
    None if there is no checkpoint to resume from.

    Args:
        check_other: called before `load` for a checkpoint in the marked one's place.

    Raises:
        FileNotFoundError, DamagedPool, DamagedCheckpoint: the first candidate's, if none is whole.
        ValueError: the experience is intact but belongs to something else.
    """
    marked = marked_step(root)
    first: Exception | None = None
    for step in candidates(root):
        folder = step_folder(root, step)
        try:
            _check_there(folder)
            if step != marked:
                check_other(folder, step)
            loaded = load(folder, step)
        except (FileNotFoundError, DamagedPool, DamagedCheckpoint) as error:
            logger.error("checkpoint of step %d cannot be used: %s", step, error)
            first = first or error
            continue
        if step != marked:
            was = "named no step" if marked is None else f"named step {marked}"
            if (root / MARKER).is_dir():
                (root / MARKER).rename(root / f"{MARKER}.folder")
            durable.replace_file(root / MARKER, str(step))
            logger.warning(
                "resuming from step %d: %s %s; what it named is left as it is",
                *(step, root / MARKER, was),
            )
        return loaded
    never_saved = marked is None and not list(root.glob(f"global_step_*/{seals.SEAL}"))
    if first is not None and not never_saved:
        raise first
    if first is not None:  # the first save of all was cut off
        logger.warning("%s: no checkpoint is whole or marked: a new run begins at step 0", root)
    return None


def _step_of(folder: Path) -> int:
    number = folder.name.removeprefix("global_step_")
    if not _is_step(number):
        raise ValueError(f"trainer.resume_from_path={folder}: must end in global_step_<number>")
    return int(number)


def _check_there(folder: Path) -> None:
    """FileNotFoundError if verl had not finished this checkpoint, or if its weights are gone.

    verl writes the weights first, each node on its own disk, and data.pt last. If no step has
    weights on this disk, they are on the disks of the actor's nodes; if any step has, this step's
    must be here too.
    """
    root = folder.parent
    if not (folder / "data.pt").exists():
        raise FileNotFoundError(f"{folder} has no data.pt: verl had not finished it")
    if (folder / "actor").exists():
        return
    for other in saved_steps(root):
        if (step_folder(root, other) / "actor").exists():
            raise FileNotFoundError(
                f"{folder} has no actor, though step {other} has: its weights were deleted"
            )
    logger.warning(
        "%s has no weights on this disk; they must be on the disks of the actor's nodes", folder
    )
