"""The full grader's process, and the one place that knows packages/math-verify-rules."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from exgrpo.math_verify_worker import Judge, load_math_verify, serve

NAME = "math_verify_rules"


def package() -> ModuleType:
    """The package, imported.

    Raises:
        ValueError: it is not installed; one line that says how to install it.
    """
    try:
        return importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        if error.name != NAME:
            raise
        raise ValueError(
            "the full grader needs the package math-verify-rules, which is not installed: "
            "pip install ./packages/math-verify-rules"
        ) from None


def load_full() -> Judge:
    """Import Math-Verify and the package.

    Returns:
        A judge of both verdicts: ``correct`` is Math-Verify's, ``rule`` the full grader's or None.
    """
    judge, rules = load_math_verify(), package()

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
        # the caller's limit was for Math-Verify
        signal.setitimer(signal.ITIMER_PROF, 2 * rules.LIMIT_S)
        rule = rules.accepted_after(gold, answer, reply["correct"], verify)
        return {**reply, "rule": rule}

    return judge_fully


if __name__ == "__main__":
    serve(load_full)
