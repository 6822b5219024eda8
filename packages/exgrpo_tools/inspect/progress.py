"""How far a long pass is: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

EVERY_S = 10.0  # between two lines of a log
T = TypeVar("T")


def progress(items: Iterable[T], total: int, what: str, unit: str) -> Iterator[T]:
    """The items, counted on stderr; `total` may be more than there are."""
    if sys.stderr.isatty():
        yield from tqdm(items, total=total, desc=what, unit=unit)
        return
    due = time.monotonic() + EVERY_S
    for count, item in enumerate(items):
        if time.monotonic() >= due:
            print(f"{what}: {count:,} of {total:,} {unit}s", file=sys.stderr, flush=True)
            due = time.monotonic() + EVERY_S
        yield item
