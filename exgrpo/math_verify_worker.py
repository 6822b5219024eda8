"""The process in which :mod:`exgrpo.math_verify_reward` has answers judged: a line of JSON in, a line of JSON out.

Ends with its caller, whose end of the pipe closes then. Math-Verify's own time limits are off: the caller keeps the
time, the kernel the computing time, and an alarm ends the process where the caller died while an answer hung.
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

GRACE_S = 2  # beyond the caller's limit, by when it would have ended us
MAX_MEMORY_BYTES = 4 << 30  # of address space; a power tower would take more before its time is up
MAX_EXTRACTED = 200  # characters of an answer that are sent back
Judge = Callable[[Sequence[str], str], dict[str, Any]]  # gold's forms, answer -> "correct" and what else is to be known


def serve(load: Callable[[], Judge]) -> None:
    """Answer requests ``{"gold": [...], "answer": ..., "limit_s": ..., "cpu_s": ...}`` until there are no more.

    A reply holds ``correct``, ``extracted`` (the answer as it was read) and ``vote`` (the same for all ways to write
    it that are known as one). Past ``cpu_s`` of computing the process is ended.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for a reply
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
        except (Exception, RecursionError):  # what cannot be parsed is not right
            reply = {"correct": False, "extracted": None, "vote": None}
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(json.dumps(reply), file=replies, flush=True)


def load_math_verify() -> Judge:
    """Import Math-Verify; its judgement."""
    from math_verify import parse, verify

    @lru_cache(maxsize=256)  # n rollouts share one
    def parse_gold(forms: tuple[str, ...]) -> list[Any]:
        return [expression for form in forms for expression in parse(form, parsing_timeout=None)]

    def judge(gold: Sequence[str], answer: str) -> dict[str, Any]:
        found = parse(answer, parsing_timeout=None)
        correct = verify(parse_gold(tuple(gold)), found, timeout_seconds=None)
        return {"correct": bool(correct), "extracted": _read(found), "vote": _vote(found)}

    return judge


def _read(found: Sequence[Any]) -> str | None:
    """The text that was read as the answer; Math-Verify puts it last."""
    return found[-1][:MAX_EXTRACTED] if found and isinstance(found[-1], str) else None


def _vote(found: Sequence[Any]) -> str | None:
    """What equal answers share: 0.5 and a half, x+1 and 1+x; None where no answer was found."""
    from sympy import Float, Rational

    if not found:
        return None
    try:
        expression = found[0]
        if isinstance(expression, Float) and 1e-12 < abs(expression) < 1e12:
            expression = Rational(str(expression))
        return str(expression)[:MAX_EXTRACTED]
    except (Exception, RecursionError):  # too long a number, too deep an expression
        return _read(found)


if __name__ == "__main__":
    serve(load_math_verify)
