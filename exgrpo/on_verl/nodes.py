"""Deletes parts of checkpoints on the disk of every node, where verl does not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)


def on_all_nodes(delete: Callable[[str, Sequence[int]], None], root: str, steps: list[int]) -> None:
    """Run ``delete(root, steps)`` on each node of Ray; a failing node is logged and left.

    Args:
        root: the folder of the checkpoints, the same path on every node; it may be a shared disk.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here, task = ray.get_runtime_context().get_node_id(), ray.remote(num_cpus=0)(delete)
    for node in [node["NodeID"] for node in ray.nodes() if node["Alive"]]:
        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        try:
            if node == here:  # no process is started for it
                delete(root, steps)
            else:
                ray.get(task.options(scheduling_strategy=on_node).remote(root, steps))
        except (ray.exceptions.RayError, OSError) as error:
            logger.warning(
                "%s of steps %s failed on node %s: %s", delete.__name__, steps, node, error
            )
