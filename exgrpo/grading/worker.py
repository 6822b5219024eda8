"""The process of the full grader: Math-Verify's verdict, and the rule by which an answer is accepted."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from exgrpo.grading.cascade import MATH_VERIFY, decide
from exgrpo.grading.guards import is_gaming
from exgrpo.math_verify_worker import Judge, load_math_verify, serve

CASCADE_S = 1.0  # CPU time for the rules after Math-Verify; the slowest of 6,525 real answers took 0.1 s


class _TooLong(BaseException):  # not an Exception, so that no handler in between catches it
    """The rules exceeded their time limit."""


def load_full() -> Judge:
    """Import Math-Verify; returns both verdicts: ``correct`` is Math-Verify's, ``rule`` the full grader's or None."""
    judge = load_math_verify()
    signal.signal(signal.SIGVTALRM, _stop)

    def verify(gold: Sequence[str], answer: str) -> bool:
        try:
            return bool(judge(gold, answer)["correct"])
        except (Exception, RecursionError):
            return False

    def judge_fully(gold: Sequence[str], answer: str) -> dict[str, Any]:
        try:
            reply = judge(gold, answer)
        except (Exception, RecursionError):  # the rules may read what Math-Verify cannot
            reply = {"correct": False, "extracted": None, "vote": None}
        signal.setitimer(signal.ITIMER_PROF, 2 * CASCADE_S)  # the caller's limit was for Math-Verify
        signal.setitimer(signal.ITIMER_VIRTUAL, CASCADE_S)
        try:
            if reply["correct"]:
                rule = None if is_gaming(gold, answer) else MATH_VERIFY
            else:
                rule = decide(gold, answer, verify)
        except (Exception, RecursionError, _TooLong):
            rule = None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
        return {**reply, "rule": rule}

    return judge_fully


def _stop(_number: int, _frame: Any) -> None:
    raise _TooLong


if __name__ == "__main__":
    serve(load_full)
