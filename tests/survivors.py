"""A test suite that is killed takes with it what it has started: Rays, engines, trainers, fork
servers.

They run in sessions of their own, so that no signal to pytest reaches them. All have inherited the
mark of the suite in their environment; a process beside the suite waits for its end and then kills
those that still carry it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "EXGRPO_TEST_SUITE"


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """Within it, whatever this process starts does not outlive it by more than a second or two."""
    os.environ[MARK] = uuid.uuid4().hex
    watcher = subprocess.Popen(
        [sys.executable, str(Path(__file__)), str(os.getpid()), os.environ[MARK]],
        env={name: value for name, value in os.environ.items() if name != MARK},
        start_new_session=True,
    )
    yield
    del os.environ[MARK]
    watcher.kill()  # an ordered end: the tests have stopped what they started
    watcher.wait()


def marked(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def main(suite: int, mark: str) -> None:
    """Wait for the suite's end, then kill until nothing is left; a process that is killed may have
    just forked.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(suite).wait()
    while left := marked(mark):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=5)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
