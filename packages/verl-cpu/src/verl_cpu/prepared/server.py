"""``python -m verl_cpu.prepared.server FD MODULE``: import the module, then fork for each that asks
on the socket.

The module may have bound itself to variables that imports read: where ``fits(environment)`` is
false, none is forked. Its ``forked()`` is called in each fork, in the worker's environment.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from verl_cpu.prepared.uncollected import uncollected


def main() -> None:
    """Serve until killed; in a fork, run what it was made for."""
    number, name = sys.argv[1:]
    listening = socket.socket(fileno=int(number))
    with uncollected():
        module = importlib.import_module(name)
    wanted = _serve(listening, module.fits)
    listening.close()
    _become(wanted)
    module.forked()
    runpy.run_path(sys.argv[0], run_name="__main__")


def _serve(listening: socket.socket, fits: Callable[[dict[str, str]], bool]) -> dict[str, Any]:
    """Fork for each that asks; returns only in a fork, with what is wanted of it."""
    while True:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError, ValueError):
            if not _is_ours(connection):
                continue
            streams, wanted = _receive(connection)
            forked = fits(wanted["environment"])
            if forked and os.fork() == 0:
                os.setpgid(
                    0, 0
                )  # as Ray's own workers have: it kills a worker's group when the worker ends
                for stream, number in zip(streams, (0, 1, 2), strict=True):
                    os.dup2(stream, number)
                    os.close(stream)
                return wanted
            connection.sendall(b"1" if forked else b"")
            for stream in streams:
                os.close(stream)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _is_ours(connection: socket.socket) -> bool:
    """Whether a process of the same user asks."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _receive(connection: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """The file descriptors of the three streams, and what ask.py wants."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as reader:
        return streams, json.loads(reader.read(int.from_bytes(length, "big")))


def _become(wanted: dict[str, Any]) -> None:
    """Take on arguments, environment and folder."""
    sys.argv[:] = wanted["arguments"]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    os.environ.clear()
    os.environ.update(wanted["environment"])
    tempfile.tempdir = None  # an import may have asked for it
    os.chdir(wanted["folder"])


if __name__ == "__main__":
    main()
