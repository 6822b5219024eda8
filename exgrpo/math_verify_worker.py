"""The process in which :mod:`exgrpo.math_verify_reward` has answers judged: a line of JSON in, a line of JSON out.

Ends with its caller, whose end of the pipe closes then. Its own time limits are off; the caller keeps the time.
"""

from __future__ import annotations

import json
import logging
import os
import sys


def main() -> None:
    """Answer requests ``{"gold": ..., "answer": ...}`` with ``{"correct": ...}`` until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for a reply
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(5_000)
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            gold = parse(request["gold"], parsing_timeout=None)
            correct = verify(gold, parse(request["answer"], parsing_timeout=None), timeout_seconds=None)
        except (Exception, RecursionError):  # what cannot be parsed is not right
            correct = False
        print(json.dumps({"correct": bool(correct)}), file=replies, flush=True)


if __name__ == "__main__":
    main()
