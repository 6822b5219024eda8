"""A training as exgrpo.main_mix_ppo starts it, with the trainer and the task runner of a
benchmark.
"""

from __future__ import annotations

import ray
from omegaconf import DictConfig, OmegaConf, open_dict

from exgrpo.on_verl.task_runner import MixTaskRunner
from exgrpo.preflight.checks import resolve, verify


def start(config: DictConfig, trainer: str, runner: type[MixTaskRunner]) -> None:
    """Train to the end.

    Args:
        trainer: the name that it is registered by.
        runner: imports the trainer in Ray's worker.
    """
    from verl.trainer.main_ppo import run_ppo

    verify(config)
    resolve(config)
    with open_dict(config):
        OmegaConf.update(config, "trainer.v1.trainer_mode", trainer)
    run_ppo(config, task_runner_class=ray.remote(runner))
