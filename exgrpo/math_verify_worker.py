"""The process in which :mod:`exgrpo.math_verify_reward` judges: a line of JSON in, a line out.

It ends when its caller ends and so closes the socket. Math-Verify's own time limits are off: the
caller limits wall-clock time, the kernel CPU time, and an alarm ends the process if the caller died
while an answer hung.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

GRACE_S = 2  # added to the caller's limit: a living caller would have ended this process by then
MAX_MEMORY_BYTES = 4 << 30  # of address space; a power tower would take more before its time is up
MAX_EXTRACTED = 200  # characters of an answer that are sent back
# (forms of the gold, answer) -> the fields of a reply
Judge = Callable[[Sequence[str], str], dict[str, Any]]


def serve(load: Callable[[], Judge]) -> None:
    """Answer requests ``{"gold": [...], "answer": ..., "limit_s": ..., "cpu_s": ...}`` to the end.

    A reply has ``correct``, ``extracted`` (the answer as it was read) and ``vote`` (equal for
    answers known to be equal). The process ends when an answer takes more than ``cpu_s`` of CPU
    time.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output printed by a library must not be mistaken for a reply
    judge = load()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > MAX_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, hard))
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(5_000)
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(math.ceil(request["limit_s"]) + GRACE_S)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        try:
            reply = judge(request["gold"], request["answer"])
        except (Exception, RecursionError):  # an answer that cannot be parsed is not correct
            reply = {"correct": False, "extracted": None, "vote": None}
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(json.dumps(reply), file=replies, flush=True)


def load_math_verify() -> Judge:
    """Import Math-Verify; returns its verdict as a Judge."""
    from math_verify import parse, verify

    @lru_cache(maxsize=256)  # the rollouts of a question share their gold
    def parse_gold(forms: tuple[str, ...]) -> list[Any]:
        return [expression for form in forms for expression in parse(form, parsing_timeout=None)]

    def judge(gold: Sequence[str], answer: str) -> dict[str, Any]:
        parsed = parse(answer, parsing_timeout=None)
        correct = verify(parse_gold(tuple(gold)), parsed, timeout_seconds=None)
        return {"correct": bool(correct), "extracted": _read(parsed), "vote": vote_key(parsed)}

    return judge


def _read(parsed: Sequence[Any]) -> str | None:
    """The text that was read as the answer; Math-Verify puts it last."""
    return parsed[-1][:MAX_EXTRACTED] if parsed and isinstance(parsed[-1], str) else None


def vote_key(parsed: Sequence[Any]) -> str | None:
    """A key that equal answers share: 0.5 and a half, x+1 and 1+x; None if no answer was found."""
    from sympy import Float, Rational

    if not parsed:
        return None
    try:
        expression = parsed[0]
        if isinstance(expression, Float) and 1e-12 < abs(expression) < 1e12:
            expression = Rational(str(expression))
        return str(expression)[:MAX_EXTRACTED]
    except (Exception, RecursionError):  # the number is too long or the expression too deep
        return _read(parsed)


if __name__ == "__main__":
    serve(load_math_verify)
