"""Delete the optimizer states of old checkpoints: two thirds of a checkpoint's size, needed only to
resume from it.

The driver decides, once a checkpoint is marked as the latest: it notes in each older folder that
its states are gone, then every node deletes the files on its own disk. A kill in between leaves
files that the next call deletes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from exgrpo.on_verl.checkpoints import marked_step, saved_steps, step_folder
from exgrpo.on_verl.nodes import on_all_nodes
from exgrpo.on_verl.seals import STATES_DELETED
from exgrpo.saved import durable

FILES = "*/optim_world_size_*_rank_*.pt"  # written by verl's FSDP checkpoint manager
NOTE = STATES_DELETED
logger = logging.getLogger(__name__)


def delete_old(root: Path, keep: int, everywhere: Callable[[str, list[int]], None]) -> list[int]:
    """Keep the states of the last ``keep`` complete checkpoints up to the marked one; returns the
    steps without states.

    Args:
        root: the folder of the checkpoints, the same path on every node.
        keep: ``trainer.max_optim_to_keep``, 1 or more.
        everywhere: runs ``delete(root, steps)`` on every node.
    """
    marked = marked_step(root)
    if marked is None:
        return []
    folders = {step: step_folder(root, step) for step in saved_steps(root) if step <= marked}
    complete = [
        step
        for step, folder in folders.items()
        if (folder / "data.pt").exists() and not are_deleted(folder)
    ]
    old = [step for step in folders if step not in complete[:keep]]
    for step in old:
        if not are_deleted(folders[step]):
            durable.replace_file(folders[step] / NOTE, "see trainer.max_optim_to_keep\n")
    if old:
        everywhere(str(root), old)
    return old


def expect_new(folder: Path) -> None:
    """Call before a step is saved: a folder left by an earlier run will get new states."""
    (folder / NOTE).unlink(missing_ok=True)


def delete(root: str, steps: Sequence[int]) -> None:
    """Delete the optimizer states of these steps on this machine's disk."""
    for step in steps:
        for file in step_folder(Path(root), step).glob(FILES):
            file.unlink(missing_ok=True)  # another node of a shared disk may be faster


def delete_on_all_nodes(root: str, steps: list[int]) -> None:
    """Run `delete` on every node; where it fails it is tried again after the next save."""
    on_all_nodes(delete, root, steps)


def are_deleted(folder: Path) -> bool:
    """Whether `delete_old` has begun to delete the optimizer states of this checkpoint."""
    return (folder / NOTE).exists()


def check(folder: Path) -> None:
    """FileNotFoundError if this checkpoint's optimizer states are deleted."""
    if are_deleted(folder):
        raise FileNotFoundError(
            f"{folder}: its optimizer states were deleted (trainer.max_optim_to_keep); with "
            "actor_rollout_ref.actor.checkpoint.load_contents=[model,extra] training resumes with "
            "a new optimizer"
        )


def check_if_loaded(load_contents: Collection[str]) -> Callable[[Path], None]:
    """`check`, or no check if verl's ``load_contents`` does not load the optimizer."""
    return check if "optimizer" in load_contents else lambda folder: None
