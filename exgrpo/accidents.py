"""What happens to a command from outside, in one line instead of a traceback."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator

DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission to write or read there",
}


@contextlib.contextmanager
def in_one_line(command: str, remains: str = "", packages: str = "") -> Iterator[None]:
    """Ctrl-C, a disk that cannot be written and a missing package end the program in one line.

    Every other error goes through as it is.

    Args:
        command: stands before the line, as the user calls it.
        remains: what of the work is kept at Ctrl-C, and how it goes on.
        packages: how a missing package is installed.
    """
    try:
        yield
    except KeyboardInterrupt:
        end(f"{command}: stopped{remains and '; '}{remains}", 130)
    except ModuleNotFoundError as error:
        if not packages or not error.name or error.name.startswith("exgrpo"):
            raise
        end(f"{command}: {error.name} is not installed: {packages}", 2)
    except OSError as error:
        cause: OSError = getattr(error, "cause", error)  # Ray wraps what its actors raise
        why = DISK.get(cause.errno or 0)
        if why is None:
            raise
        end(f"{command}: {cause.filename or 'a file'} could not be used: {why}", 1)


def end(line: str, status: int) -> None:
    """Print the line to stderr and exit."""
    print(line, file=sys.stderr, flush=True)
    sys.exit(status)
