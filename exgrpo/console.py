"""What a command says of itself: a line for what takes long, and one for an end from outside."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission to write or read there",
}
AFTER_S = 10.0


@contextlib.contextmanager
def in_one_line(command: str, remains: str = "", packages: str = "") -> Iterator[None]:
    """Ctrl-C, a disk that cannot be written and a missing package end the program in one line, not
    a traceback. Every other error goes through as it is.

    Args:
        command: stands before the line, as the user calls it.
        remains: what of the work is kept at Ctrl-C, and how it goes on.
        packages: how a missing package is installed.
    """
    try:
        yield
    except KeyboardInterrupt:
        _end(f"{command}: stopped{remains and '; '}{remains}", 130)
    except ModuleNotFoundError as error:
        if not packages or not error.name or error.name.startswith("exgrpo"):
            raise
        _end(f"{command}: {error.name} is not installed: {packages}", 2)
    except OSError as error:
        cause: OSError = getattr(error, "cause", error)  # Ray wraps what its actors raise
        why = DISK.get(cause.errno or 0)
        if why is None:
            raise
        _end(f"{command}: {cause.filename or 'a file'} could not be used: {why}", 1)


def refused(command: str, error: Exception) -> NoReturn:
    """End with status 2 and one line: what is wrong, or which file is not there."""
    text = str(error)
    if isinstance(error, FileNotFoundError) and error.filename:
        text = f"{error.filename}: no such file"
    _end(f"{command}: error: {' '.join(text.split())}", 2)


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Say on stderr what is going on, once it has taken `AFTER_S` seconds, and how long it took.

    Args:
        what: a participle clause, such as "loading the model".
    """
    began, lasts = time.monotonic(), threading.Event()

    def announce() -> None:
        if not lasts.wait(AFTER_S):
            _say(f"exgrpo: {what} ...")

    watcher = threading.Thread(target=announce, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        lasts.set()
        watcher.join()
    seconds = time.monotonic() - began
    if seconds >= AFTER_S:
        _say(f"exgrpo: {what} took {seconds:.0f} s")


def printable(text: str) -> str:
    """Text for a terminal: characters that would move its cursor, change its colours or the order
    of its text are escaped.
    """
    return "".join(c if c == "\t" or c.isprintable() else repr(c)[1:-1] for c in text)


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def _end(line: str, status: int) -> NoReturn:
    _say(line)
    sys.exit(status)
