"""The process of the second grader: PRM800K's comparison, in the version that verl carries and maintains.

It shares no code with Math-Verify: answers are compared as normalised text, and as SymPy expressions if they have few
enough letters to be evaluated. Many published numbers were made with graders derived from it (such as Oat's, which the
released script called). verl's `math_equal` beside it is not used: it evaluates the model's text as Python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: only this folder is on the import path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eval.extraction import boxed
from exgrpo.math_verify_worker import MAX_EXTRACTED, Judge, serve


def load_prm800k() -> Judge:
    """Import verl's copy; judges the last box, or the text that the grader finds after "the answer is"."""
    from verl.utils.reward_score import prime_math

    # its time limit forks a process for each comparison, which could outlive this one; our caller limits the time
    prime_math.are_equal_under_sympy = prime_math.are_equal_under_sympy.__wrapped__

    def judge(gold: Sequence[str], answer: str) -> dict[str, Any]:
        written = next(boxed(answer), "") or prime_math.match_answer(answer)[1]
        correct = any(prime_math.grade_answer(written, form) for form in gold)
        return {"correct": bool(correct), "extracted": written[:MAX_EXTRACTED], "vote": None}

    return judge


if __name__ == "__main__":
    serve(load_prm800k)
