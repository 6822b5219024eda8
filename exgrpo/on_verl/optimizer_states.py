"""Optimizer states are two thirds of a checkpoint and of use only for going on from it: of old ones they are deleted.

The driver decides, once a checkpoint is marked as the latest: it notes in each older folder that its states are gone,
then every node deletes the files on its own disk. A kill in between leaves files that the next call deletes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from exgrpo.on_verl.checkpoints import marked_step, saved_steps, step_folder
from exgrpo.saved import durable

FILES = "*/optim_world_size_*_rank_*.pt"  # in a checkpoint's folder, by verl's FSDP checkpoint manager
NOTE = "optimizer_states_deleted"
logger = logging.getLogger(__name__)


def delete_old(root: Path, keep: int, everywhere: Callable[[str, list[int]], None]) -> list[int]:
    """Keep those of the last ``keep`` whole checkpoints up to the marked one; returns the steps that have lost theirs.

    Args:
        root: the folder of the checkpoints, the same path on every node.
        keep: ``trainer.max_optim_to_keep``, 1 or more.
        everywhere: runs ``delete(root, steps)`` on every node.
    """
    marked = marked_step(root)
    if marked is None:
        return []
    folders = {step: step_folder(root, step) for step in saved_steps(root) if step <= marked}
    whole = [step for step, folder in folders.items() if (folder / "data.pt").exists() and not are_deleted(folder)]
    old = [step for step in folders if step not in whole[:keep]]
    for step in old:
        if not are_deleted(folders[step]):
            durable.replace_file(folders[step] / NOTE, "see trainer.max_optim_to_keep\n")
    if old:
        everywhere(str(root), old)
    return old


def expect_new(folder: Path) -> None:
    """Call before a step is saved: a folder that an earlier run left behind gets new states."""
    (folder / NOTE).unlink(missing_ok=True)


def delete(root: str, steps: Sequence[int]) -> None:
    """Delete what this machine has of the optimizer states of these steps."""
    for step in steps:
        for file in step_folder(Path(root), step).glob(FILES):
            file.unlink(missing_ok=True)  # another node of a shared disk may be faster


def delete_on_all_nodes(root: str, steps: list[int]) -> None:
    """`delete` on every node of the Ray cluster; one that fails is warned of, and asked again after the next save."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0)(delete)
    for node in [node["NodeID"] for node in ray.nodes() if node["Alive"]]:
        try:
            ray.get(
                task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(root, steps)
            )
        except (ray.exceptions.RayError, OSError) as error:
            logger.warning("optimizer states of steps %s are not deleted on node %s: %s", steps, node, error)


def are_deleted(folder: Path) -> bool:
    """Whether `delete_old` has deleted, or was about to delete, the optimizer states of this checkpoint."""
    return (folder / NOTE).exists()


def check(folder: Path) -> None:
    """Raise FileNotFoundError if this checkpoint's optimizer states are deleted: verl would fail in its workers."""
    if are_deleted(folder):
        raise FileNotFoundError(
            f"{folder}: its optimizer states were deleted (trainer.max_optim_to_keep); with "
            "actor_rollout_ref.actor.checkpoint.load_contents=[model,extra] a new optimizer goes on from its weights"
        )


def check_if_loaded(load_contents: Collection[str]) -> Callable[[Path], None]:
    """`check`, or nothing where ``load_contents`` (verl's) says that the optimizer is not loaded."""
    return check if "optimizer" in load_contents else lambda folder: None


def verify(trainer: Mapping[str, Any], load_contents: Collection[str]) -> None:
    """Check the checkpoint that the run would go on from.

    Raises:
        ValueError, FileNotFoundError: in one line.
    """
    root = Path(str(trainer["default_local_dir"]))
    if trainer["resume_mode"] == "resume_path":
        check_if_loaded(load_contents)(Path(str(trainer["resume_from_path"])))
    elif trainer["resume_mode"] == "auto" and (step := marked_step(root)) is not None:
        check_if_loaded(load_contents)(step_folder(root, step))
