"""verl's V1 task runner with a faster start."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from omegaconf import DictConfig

from exgrpo.console import phase
from exgrpo.on_verl.stopping import FOLDER


class Lost(RuntimeError):
    """What a training needs has died or hangs; the text is the line with which the command ends.

    Here, since the command imports neither verl nor the queue.
    """


class MixTaskRunner:
    """Ray actor of the training's driver process; the module imports neither verl nor torch.

    Importing verl takes about as long as starting the queue's processes, so both run in parallel.
    """

    trainers = "exgrpo.mix_trainer_experience"  # registers the trainer the configuration names

    def __init__(self, stopping: str = "") -> None:
        """`stopping`: the folder by which the command stops the trainer (`stopping.FOLDER`)."""
        os.environ[FOLDER] = stopping

    def run(self, config: DictConfig) -> None:
        """Train to the end; errors of the training propagate."""
        with ThreadPoolExecutor(1) as executor, phase("loading verl and the engine"):
            started = executor.submit(_start_queue, config)
            importlib.import_module(self.trainers)
            from verl.trainer.main_ppo import TaskRunnerV1
            from verl.workers.rollout.replica import get_rollout_replica_class

            # imports the engine early
            get_rollout_replica_class(config.actor_rollout_ref.rollout.name)
            started.result()
        show_warnings()
        # TaskRunnerV1 is a Ray actor class; this is the plain class that it wraps
        TaskRunnerV1.__ray_metadata__.modified_class().run(config)


class OnThisNode:
    """A Ray actor class, as verl's `run_ppo` wants it; its actor lives on the command's node.

    Marker, ``data.pt`` and pool of a run are on the runner's disk: Ray would put it on any node,
    where a killed run would not find them, and begin anew.

    Args:
        check: called once Ray is up, before the actor is asked for; raises what ends the command.
        arguments, options: of the actor, and of its start.
    """

    def __init__(
        self,
        actor_class: Any,
        check: Callable[[], None] = lambda: None,
        *arguments: Any,
        **options: Any,
    ) -> None:
        self._class, self._check = actor_class, check
        self._arguments, self._options = arguments, options

    def options(self, **options: Any) -> OnThisNode:
        return OnThisNode(self._class, self._check, *self._arguments, **self._options | options)

    def remote(self) -> Any:
        """Start the actor, once Ray is up; returns its handle."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._check()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = self._options | {"scheduling_strategy": here}
        return self._class.options(**options).remote(*self._arguments)


def show_warnings() -> None:
    """Print exgrpo's warnings whatever logging is set up: vLLM's import hides all but errors."""
    package = logging.getLogger("exgrpo")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:%(message)s"))
    package.handlers = [handler]
    package.propagate = False
    package.setLevel(logging.WARNING)


def _start_queue(config: DictConfig) -> None:
    from exgrpo.on_verl import queue

    queue.start(config)
