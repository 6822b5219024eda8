"""A line for each phase of a command that takes longer than ten seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

AFTER_S = 10.0


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Say on stderr what is going on, once it has taken `AFTER_S` seconds, and how long it took.

    A shorter phase prints nothing.

    Args:
        what: a participle clause, such as "loading the model".
    """
    began, lasts = time.monotonic(), threading.Event()

    def announce() -> None:
        if not lasts.wait(AFTER_S):
            print(f"exgrpo: {what} ...", file=sys.stderr, flush=True)

    watcher = threading.Thread(target=announce, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        lasts.set()
        watcher.join()
    seconds = time.monotonic() - began
    if seconds >= AFTER_S:
        print(f"exgrpo: {what} took {seconds:.0f} s", file=sys.stderr, flush=True)
