"""What is deleted of older checkpoints: pool and queue together with the weights that verl deletes,
and optimizer states, two thirds of a checkpoint's size, needed only to resume from it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from exgrpo.on_verl import checkpoints
from exgrpo.on_verl.seals import STATES_DELETED
from exgrpo.saved import durable

FILES = "*/optim_world_size_*_rank_*.pt"  # written by verl's FSDP checkpoint manager
# of these steps, below the folder of the checkpoints, on this machine's disk
Delete = Callable[[str, Sequence[int]], None]
logger = logging.getLogger(__name__)


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
        """Call just before verl saves ``step``; returns the steps that verl then deletes."""
        surplus = max(0, len(self._saved) + 1 - self._keep) if self._keep else 0
        gone, self._saved = self._saved[:surplus], [*self._saved[surplus:], step]
        for old in gone:
            for name in (checkpoints.POOL, checkpoints.QUEUE):
                shutil.rmtree(checkpoints.step_folder(self._root, old) / name, ignore_errors=True)
        return gone


def on_all_nodes(delete: Delete, root: str, steps: list[int]) -> None:
    """Run ``delete(root, steps)`` on each node of Ray; a failing node is logged and left.

    Args:
        root: the folder of the checkpoints, the same path on every node; it may be a shared disk.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    task = ray.remote(num_cpus=0)(delete)
    for node in [node["NodeID"] for node in ray.nodes() if node["Alive"]]:
        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        try:
            if node == here:  # no process is started for it
                delete(root, steps)
            else:
                ray.get(task.options(scheduling_strategy=on_node).remote(root, steps))
        except (ray.exceptions.RayError, OSError) as error:
            name = delete.__name__
            logger.warning("%s of steps %s failed on node %s: %s", name, steps, node, error)


def delete_weights(root: str, steps: Sequence[int]) -> None:
    """The weights of these steps on this machine's disk; verl does so on one rank's alone."""
    for step in steps:
        shutil.rmtree(checkpoints.step_folder(Path(root), step) / "actor", ignore_errors=True)


def delete(root: str, steps: Sequence[int]) -> None:
    """The optimizer states of these steps on this machine's disk."""
    for step in steps:
        for file in checkpoints.step_folder(Path(root), step).glob(FILES):
            file.unlink(missing_ok=True)  # another node of a shared disk may be faster


def delete_states(
    root: Path, keep: int, everywhere: Callable[[Delete, str, list[int]], None] = on_all_nodes
) -> list[int]:
    """Keep the optimizer states of the last ``keep`` complete checkpoints up to the marked one;
    returns the steps without states.

    A note in each older folder says that they are gone, then every node deletes the files on its
    own disk. What a kill or a failing node leaves is deleted after the next save.
    """
    marked = checkpoints.marked_step(root)
    if marked is None:
        return []
    steps = [step for step in checkpoints.saved_steps(root) if step <= marked]
    folders = {step: checkpoints.step_folder(root, step) for step in steps}
    whole = [step for step in steps if (folders[step] / "data.pt").exists()]
    complete = [step for step in whole if not states_deleted(folders[step])]
    old = [step for step in steps if step not in complete[:keep]]
    for step in old:
        if not states_deleted(folders[step]):
            note = "see trainer.max_optim_to_keep\n"
            durable.replace_file(folders[step] / STATES_DELETED, note)
    if old:
        everywhere(delete, str(root), old)
    return old


def states_deleted(folder: Path) -> bool:
    """Whether the deletion of this checkpoint's optimizer states has begun."""
    return (folder / STATES_DELETED).exists()


def check_states(folder: Path) -> None:
    """FileNotFoundError if this checkpoint's optimizer states are deleted."""
    if states_deleted(folder):
        raise FileNotFoundError(
            f"{folder}: its optimizer states were deleted (trainer.max_optim_to_keep); with "
            "actor_rollout_ref.actor.checkpoint.load_contents=[model,extra] training resumes with "
            "a new optimizer"
        )


def check_if_loaded(load_contents: Collection[str]) -> Callable[[Path], None]:
    """`check_states`, or no check if verl's ``load_contents`` does not load the optimizer."""
    return check_states if "optimizer" in load_contents else lambda folder: None
