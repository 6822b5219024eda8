r"""The process of Oat's grader, whose verdicts are the accuracy of paper and release
(--add_oat_evaluate).

The last box is right if it equals the gold after MATH's normalisation, if SymPy finds the two equal
as PRM800K compares them, or if Math-Verify does (the grader's slow mode, which the release uses).
Any one is enough, so this grader accepts more than Math-Verify on the whole response, and needs a
box where that one does not.

PRM800K's comparison hands text to SymPy's parser, which evaluates it as Python. Here text with
quotes is not handed
over: without strings, names of two letters call nothing.
"""

from __future__ import annotations

import logging
import re
import signal
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from exgrpo.math_verify_worker import MAX_EXTRACTED, Judge, serve, vote_key
from exgrpo_eval.grade.oat_forms import (
    is_whole,
    last_box,
    math_form,
    prm800k_form,
    repeats_itself,
    without_thousands,
)

# CPU time for SymPy, then for Math-Verify, then for the vote; the release gives Math-Verify 1 s
STEP_S = 0.6
LONG = 128  # characters from which on a text that repeats itself is not given to Math-Verify
T = TypeVar("T")
_BRACKETS = "()[]"
_FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")
_TOO_HARD = re.compile(
    r"\^[{(]|\^[0-9]+\^|\^[0-9][0-9]+"
)  # powers that SymPy might try to compute for ever
_UNSAFE = re.compile("[\"'`\\\\]")


class _TooLong(BaseException):  # not an Exception, so that no handler in between catches it
    """A step exceeded its time limit."""


def load_oat() -> Judge:
    """Import SymPy and Math-Verify; judges the content of a box, with the gold answer as its
    benchmark has it.
    """
    logging.disable(logging.CRITICAL)  # Math-Verify warns that its own time limit is off
    parsed, verify = _math_verify()
    signal.signal(signal.SIGVTALRM, _stop)
    equal_as_prm800k(
        "x^2", "x*x/1.1"
    )  # the libraries load what they need at their first use, in no answer's time
    verify(r"\frac{1}{2}", "(x, 3)")

    def judge(gold: Sequence[str], answer: str) -> dict[str, Any]:
        answers = [last_box(form) if r"\boxed" in form else form for form in gold]
        correct = any(
            math_form(form) == math_form(answer)
            or _in_time(lambda form=form: equal_as_prm800k(form, answer))
            or _in_time(lambda form=form: verify(form, answer))
            for form in answers
            if form is not None
        )
        text = math_form(answer)[:MAX_EXTRACTED]  # for what cannot be read as an expression
        vote = _in_time(lambda: vote_key(parsed(answer))) or text
        return {"correct": correct, "extracted": answer[:MAX_EXTRACTED], "vote": vote}

    return judge


def _stop(_number: int, _frame: Any) -> None:
    raise _TooLong


def _in_time(compute: Callable[[], T]) -> T | None:
    """The result; None if that fails or takes too long."""
    signal.setitimer(signal.ITIMER_VIRTUAL, STEP_S)
    try:
        return compute()
    except (Exception, RecursionError, _TooLong):
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def equal_as_prm800k(gold: str, answer: str) -> bool:
    """Whether two answers are equal as PRM800K compares them: as text, or each entry of a tuple as
    SymPy expressions.

    Whole numbers and plain fractions must be equal as text: 2/4 is not 1/2.
    """
    gold, answer = prm800k_form(gold), prm800k_form(answer)
    if gold == answer:
        return True
    if not answer:
        return False
    golds, answers = _entries(gold), _entries(answer)
    if len(golds) != len(answers) or (
        len(golds) > 1 and (gold[0], gold[-1]) != (answer[0], answer[-1])
    ):
        return False
    return all(map(_equal_entries, golds, answers))


def _entries(text: str) -> list[str]:
    """The entries of a tuple or interval; of any other text, the text."""
    text = without_thousands(text)
    if (
        len(text) > 2
        and text[0] in _BRACKETS
        and text[-1] in _BRACKETS
        and not set(_BRACKETS) & set(text[1:-1])
    ):
        return [entry.strip() for entry in text[1:-1].split(",")]
    return [text] if text else []


def _equal_entries(gold: str, answer: str) -> bool:
    if _FRACTION.search(gold) and _FRACTION.search(answer):
        return gold == answer
    if is_whole(without_thousands(gold)) != is_whole(without_thousands(answer)):
        return False
    return _difference_is_zero(f"({gold})-({answer})")


def _difference_is_zero(difference: str) -> bool:
    """Whether SymPy simplifies the text to 0; False for more than two letters, or text not safe to
    read.
    """
    letters = set(filter(str.isalpha, difference.replace("sqrt", "").replace("frac", "")))
    normal = (
        unicodedata.normalize("NFKC", difference) == difference
    )  # Python reads names in that form
    if len(letters) > 2 or _TOO_HARD.search(difference) or _UNSAFE.search(difference) or not normal:
        return False
    import sympy
    from sympy.parsing import sympy_parser

    steps = (
        *sympy_parser.standard_transformations,
        sympy_parser.implicit_multiplication_application,
    )
    return bool(
        sympy.simplify(
            sympy_parser.parse_expr(difference.replace("^", "**"), transformations=steps)
        )
        == 0
    )


def _math_verify() -> tuple[Callable[[str], list[Any]], Callable[[str, str], bool]]:
    """Math-Verify's parser as the release calls it, and whether two answers are equal by it."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configuration = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())

    def parsed(answer: str) -> list[Any]:
        marked = answer if "$" in answer else f"${answer}$"
        return list(
            parse(
                marked,
                extraction_config=configuration,
                fallback_mode="no_fallback",
                parsing_timeout=None,
            )
        )

    def equal(gold: str, answer: str) -> bool:
        if any(len(text) > LONG and repeats_itself(text) for text in (gold, answer)):
            return False
        return bool(verify(parsed(gold), parsed(answer), timeout_seconds=None))

    return parsed, equal


def main() -> None:
    """Answer what is asked on stdin; ends with it."""
    serve(load_oat)
