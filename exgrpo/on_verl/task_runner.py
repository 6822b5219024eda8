"""The start of a training: verl's V1 task runner, with less waiting."""

from __future__ import annotations

import importlib
import logging
from concurrent.futures import ThreadPoolExecutor

from omegaconf import DictConfig


class MixTaskRunner:
    """Ray actor of the training's driver process; this module imports neither verl nor torch, its ``run`` does.

    Importing verl takes as long here as it takes the queue's own processes to start, so both go on together.
    """

    trainers = "exgrpo.mix_trainer_experience"  # module that registers the trainer the configuration names

    def run(self, config: DictConfig) -> None:
        """Train to the end; raises what the training raised."""
        with ThreadPoolExecutor(1) as beside:
            started = beside.submit(_start_queue, config)
            importlib.import_module(self.trainers)
            from verl.trainer.main_ppo import TaskRunnerV1
            from verl.workers.rollout.replica import get_rollout_replica_class

            get_rollout_replica_class(config.actor_rollout_ref.rollout.name)  # imports the engine, for later
            started.result()
        show_warnings()
        # TaskRunnerV1 is an actor class; the plain class is underneath
        TaskRunnerV1.__ray_metadata__.modified_class().run(config)


def show_warnings() -> None:
    """Print exgrpo's warnings whatever the libraries set for all: after vLLM's import only errors would appear."""
    ours = logging.getLogger("exgrpo")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:%(message)s"))
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.WARNING)


def _start_queue(config: DictConfig) -> None:
    from exgrpo.on_verl import queue

    queue.start(config)
