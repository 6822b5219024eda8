"""Ray's workers on a CPU are forks of one prepared process (``verl_cpu.prepared``)."""

from __future__ import annotations

import gc
import os
import sys
import uuid
from importlib.metadata import entry_points
from typing import Any

import psutil
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, open_dict

from verl_cpu import is_asked_for, weight_socket
from verl_cpu.prepared import PreparedProcess

IMPORTS = "verl_cpu.worker_imports"
FIRST_JOB = "01000000"  # a Ray of one's own numbers its jobs from 1

# Limits of Ray (60 and 30 s) that a start on a busy machine exceeds, after which it gives up.
PATIENCE = {
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "600000",
}


class PreparedWorkers(Callback):
    """Hydra's callback of ``stack=cpu``: the prepared process imports while the driver does.

    Only if the training starts a Ray of its own: one that runs already may have processes in other
    mount namespaces or on other machines. ``ray_init.runtime_env.py_executable``, set to a Python:
    no forks.
    """

    prepared: PreparedProcess | None = None

    def on_run_start(self, config: DictConfig, **more: Any) -> None:
        """Start the process and name it in the configuration; one line where verl lacks us."""
        if reason := _why_not():
            sys.exit(f"verl_cpu: {reason}")
        # The driver imports verl, all of which stays, and then waits: a fifth of that time goes by
        # looking for garbage.
        gc.set_threshold(100_000, 50, 100)
        os.environ.setdefault("TQ_NUM_THREADS", str(queue_threads()))
        ray_init = config.ray_kwargs.ray_init
        if ray_init.get("address") != "local" or ray_init.runtime_env.get("py_executable"):
            return
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        with open_dict(ray_init):
            ray_init.runtime_env.env_vars[weight_socket.TRAINING] = uuid.uuid4().hex[:12]
        variables = {name: str(value) for name, value in ray_init.runtime_env.env_vars.items()}
        # Ray reads these two when it is imported, of a raylet that does not run yet. A worker ends
        # when the process of the second does: here the driver, with which the raylet ends.
        variables |= {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())}
        self.prepared = PreparedProcess(IMPORTS, os.environ | variables)
        with open_dict(ray_init):
            ray_init.runtime_env.py_executable = self.prepared.py_executable

    def on_run_end(self, config: DictConfig, **more: Any) -> None:
        """Stop it; where the driver ends otherwise, it ends with the driver."""
        if self.prepared is not None:
            self.prepared.stop()


def queue_threads() -> int:
    """Threads of TransferQueue: it asks for 8, and on fewer cores it takes those and warns at every
    put and get.
    """
    return min(8, psutil.cpu_count(logical=False) or 1)


def _why_not() -> str | None:
    """Why verl would run without the CPU's platform, known before verl is imported."""
    if not is_asked_for():
        return "stack=cpu needs VERL_PLATFORM=cpu in the environment"
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip()
    if not {name.strip() for name in policy.lower().split(",")} & {"auto", "verl_cpu"}:
        return f"VERL_USE_EXTERNAL_PLUGINS={policy}: must be auto or name verl_cpu"
    if "verl_cpu" not in entry_points(group="verl.plugins").names:
        return "on the path but not installed, so that verl does not load it: pip install verl-cpu"
    return None
