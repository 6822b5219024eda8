"""Python's cyclic garbage collector, while the stack is imported."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is collected within, and whatever exists at the end never will be: for imports, of
    which all stays.

    The collector looks at everything whenever that has grown by a quarter: a fifth of the seconds
    in which torch, verl and vLLM are imported. In a fork it would also write to, and thereby copy,
    every page that is shared.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
