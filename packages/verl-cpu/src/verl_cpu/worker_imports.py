"""What any training of verl imports on a CPU, and what forks of a process that has it need.

The order is part of it: verl's plug-in adapts the process first, and vLLM reads its variables when
it is imported. Ray reads its own once, at its import, two of which the raylet will only give to its
workers; and its generator of random numbers, which seeds itself when it is first used, must be used
by forks alone.
"""

# ruff: noqa: E402, F401
from __future__ import annotations

import os

import numpy as np
import ray.actor
from ray._raylet import Config  # type: ignore[attr-defined]


class _ClassID(ray.ActorClassID):
    """The id of each actor class that is defined while verl is imported, without Ray's generator.

    Forks of a process that has used it draw the same ids. Two workers that start in the same moment
    then make the same object, on which one of them ends, and Ray waits for it for the ten minutes
    of `prepared_workers.PATIENCE`.
    """

    @classmethod
    def from_random(cls) -> ray.ActorClassID:
        return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))


ray.actor.ActorClassID = _ClassID

from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

for _name, _value in get_ppo_ray_runtime_env()["env_vars"].items():
    os.environ.setdefault(_name, _value)

import verl.experimental.agent_loop
import verl.trainer.main_ppo
import verl.trainer.ppo.v1.trainer_sync
import verl.workers.engine_workers
import verl.workers.rollout.vllm_rollout.vllm_async_server
import vllm.v1.engine.async_llm
import vllm.v1.worker.cpu_worker

from verl_cpu import weight_socket
from verl_cpu.prepared import seed

weight_socket.install()


def fits(environment: dict[str, str]) -> bool:
    """Whether a worker is of the job that Ray was imported for."""
    return environment.get("RAY_JOB_ID") == os.environ["RAY_JOB_ID"]


def forked() -> None:
    """Ray reads again whether it needs a token; no two forks draw the same unseeded numbers, vLLM's
    engine neither.
    """
    Config.initialize("")
    np.random.seed()
    seed.plant(np.random.seed)
