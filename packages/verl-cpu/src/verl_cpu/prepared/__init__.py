"""A process that has imported the stack and from which Ray's workers are forked, instead of each
importing it anew.

Ten processes of a training import torch, verl and vLLM, nine seconds of one core each. Ray starts
its workers with the program that ``runtime_env.py_executable`` names; here that is ``ask.py``,
which hands its arguments, environment and output to the prepared process and ends. Where that
process is gone, ``ask.py`` becomes an ordinary worker.

Linux only, and for the processes of one user on one machine, in one mount namespace.
"""

from __future__ import annotations

import ctypes
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

PR_SET_PDEATHSIG = 1
WAITING = 64  # workers that may ask while the process still imports


class PreparedProcess:
    """The prepared process; it ends with :meth:`stop` and with the process that made it, its forks
    with their Ray.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        """Start importing the module (see server.py) with the variables that the workers will have;
        returns at once.
        """
        name = f"verl-cpu-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(f"\0{name}")  # without a file that a kill would leave
            listening.listen(WAITING)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "verl_cpu.prepared.server", str(listening.fileno()), module],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                process_group=0,  # a Ctrl-C is the driver's
                preexec_fn=partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        ask = Path(__file__).with_name("ask.py")
        self.py_executable = shlex.join([sys.executable, "-I", "-S", str(ask), name])

    def stop(self) -> None:
        """No further workers are forked; those that were go on."""
        self._process.kill()
        self._process.wait()
