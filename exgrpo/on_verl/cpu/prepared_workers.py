"""Ray's workers on a CPU are forks of one prepared process (``exgrpo.prepared``)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf import DictConfig, open_dict

from exgrpo.on_verl.cpu import weight_socket
from exgrpo.prepared import PreparedProcess

IMPORTS = "exgrpo.on_verl.cpu.worker_imports"
FIRST_JOB = "01000000"  # a Ray of one's own numbers its jobs from 1


# Limits of Ray (60 and 30 s) that a start on a busy machine exceeds, after which it gives up.
PATIENCE = {"RAY_worker_register_timeout_seconds": "600", "RAY_agent_register_timeout_ms": "600000"}


@contextmanager
def prepared_workers(config: DictConfig) -> Iterator[None]:
    """Within it Ray starts its workers so, if ``VERL_PLATFORM=cpu`` and the training starts a Ray of its own.

    A Ray that runs already may have processes in other mount namespaces or on other machines.
    """
    ray_init = config.ray_kwargs.ray_init
    on_cpu = os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
    if not on_cpu or ray_init.get("address") != "local" or ray_init.runtime_env.get("py_executable"):
        yield
        return
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    with open_dict(ray_init):
        ray_init.runtime_env.env_vars[weight_socket.TRAINING] = uuid.uuid4().hex[:12]
    variables = {name: str(value) for name, value in ray_init.runtime_env.env_vars.items()}
    # Ray reads these two when it is imported, of a raylet that does not run yet. A worker ends when the process of the
    # second does: here the driver, with which the raylet ends.
    variables |= {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())}
    prepared = PreparedProcess(IMPORTS, os.environ | variables)
    try:
        with open_dict(ray_init):
            ray_init.runtime_env.py_executable = prepared.py_executable
        yield
    finally:
        prepared.stop()
