"""Drivers of trainings as forks of a process that has imported what they do: six of a start's 25
CPU seconds.

The workers of the same runs are such forks too (the fixture `forks`); runs without it start as a
user's do.
"""

import atexit
import multiprocessing
import os
import runpy
import sys
from multiprocessing import forkserver

FORKS = multiprocessing.get_context("forkserver")
IMPORTS = [
    "exgrpo.main_mix_ppo",
    "exgrpo.on_verl.mix_actor",
    "transformers.models.auto.tokenization_auto",
]


def prepare():
    """Start that process, with this one's environment, unless it runs; it ends with this one."""
    FORKS.set_forkserver_preload(IMPORTS)
    forkserver.ensure_running()


class ForkedDriver:
    """``python -m MODULE argument ...`` in a session of its own; what our tests use of
    subprocess.Popen.
    """

    def __init__(self, arguments, log, environment, folder):
        self._process = FORKS.Process(target=_become, args=(arguments, log, environment, folder))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self):
        self._process.join()


def _become(arguments, log, environment, folder):
    from ray._raylet import Config

    os.setsid()
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)  # what the imports have set is for the workers too
    Config.initialize("")  # Ray's, which it reads when it is imported: whether a token is needed
    os.chdir(folder)
    sys.argv[:] = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # Ray's, which a process of multiprocessing leaves out
