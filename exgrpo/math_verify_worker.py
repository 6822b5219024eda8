"""The process in which :mod:`exgrpo.math_verify_reward` has answers judged: a line of JSON in, a line of JSON out.

Ends with its caller, whose end of the pipe closes then. Math-Verify's own time limits are off; the caller keeps the
time, and an alarm ends the process where the caller died while an answer hung.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import signal
import sys
from functools import lru_cache

GRACE_S = 2  # beyond the caller's limit, by when it would have ended us
MAX_MEMORY_BYTES = 4 << 30  # of address space; a power tower would take more before its time is up


def main() -> None:
    """Answer requests ``{"gold": ..., "answer": ...}`` with ``{"correct": ...}`` until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for a reply
    from math_verify import parse, verify

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > MAX_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, hard))
    parse_gold = lru_cache(maxsize=256)(lambda gold: parse(gold, parsing_timeout=None))  # n rollouts share one
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(5_000)
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(math.ceil(request.get("limit_s", 5.0)) + GRACE_S)
        try:
            gold = parse_gold(request["gold"])
            correct = verify(gold, parse(request["answer"], parsing_timeout=None), timeout_seconds=None)
        except (Exception, RecursionError):  # what cannot be parsed is not right
            correct = False
        signal.alarm(0)
        print(json.dumps({"correct": bool(correct)}), file=replies, flush=True)


if __name__ == "__main__":
    main()
