"""A child that a fork of the prepared process keeps ready: the next process that multiprocessing
spawns there.

vLLM's engine is such a process. Spawned anew it imports torch and vLLM once more; the child, forked
before its parent had threads, has them. Like a spawned process it is a child of the one that starts
it, with the environment, folder, streams and open files that this one has by then.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import Any

# the last argument of each process that multiprocessing spawns, and of no other
SPAWNED = "--multiprocessing-fork"
MOST_FILES = 253  # that Linux sends at once


def plant(grown: Callable[[], object]) -> None:
    """Make the child, which calls `grown` first; the process must not have threads yet.

    Its second process is spawned as ever.
    """
    mine, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        mine.close()
        _wait(its, grown)
    its.close()
    spawn, ready = util.spawnv_passfds, [mine]

    def grow_or_spawn(path: bytes, arguments: Sequence[Any], passed: Sequence[int]) -> int:
        if not ready or os.fsdecode(arguments[-1]) != SPAWNED:
            return spawn(path, arguments, passed)
        with ready.pop() as connection:
            _grow(connection, os.fsdecode(arguments[-2]), [0, 1, 2, *passed])
        return pid

    util.spawnv_passfds = grow_or_spawn  # type: ignore[assignment]  # its own arguments are broader


def _grow(connection: socket.socket, code: str, files: list[int]) -> None:
    """Give the child the code that a spawned process runs, and what it has of its parent; files
    keep their numbers.
    """
    wanted = {"code": code, "files": files, "environment": dict(os.environ), "folder": os.getcwd()}
    told = json.dumps(wanted).encode()
    socket.send_fds(connection, [len(told).to_bytes(8, "big")], files)
    connection.sendall(told)


def _wait(connection: socket.socket, grown: Callable[[], object]) -> None:
    """In the child: become what is asked for, and end as that does; or end with a parent that asks
    for nothing.
    """
    length, received, _, _ = socket.recv_fds(connection, 8, MOST_FILES)
    if not length:
        os._exit(0)
    with connection.makefile("rb") as reader:
        wanted = json.loads(reader.read(int.from_bytes(length, "big")))
    _take(received, wanted["files"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    sys.argv[:] = ["-c", SPAWNED]
    grown()
    exec(wanted["code"], {})
    sys.exit()


def _take(received: list[int], numbers: list[int]) -> None:
    """Have the received files open under these numbers, and no others."""
    above = max(*received, *numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    os.closerange(3, above)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
