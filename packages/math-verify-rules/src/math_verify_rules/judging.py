"""The verdict on a response: Math-Verify's first, then the guards' or the rules'; deterministic."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from math_verify_rules.boxes import boxes_differ, final_answer
from math_verify_rules.comparison import REPAIRED, compare, is_too_much
from math_verify_rules.guards import is_gaming
from math_verify_rules.reading import read
from math_verify_rules.repair import repair, single_backslashes
from math_verify_rules.statements import LAST_BOX, all_boxes, plain_response, takes_back
from math_verify_rules.trees import Unreadable
from math_verify_rules.wording import conditions

MATH_VERIFY = "math_verify"
LIMIT_S = 1.0  # CPU time for guards and rules; the slowest of 6,525 real answers took 0.1 s
_SEVERAL = re.compile(r"[,;]|\\(?:cup|pm)(?![a-z])|\b(?:or|and)\b")
MAX_CHARACTERS = 1_000  # of an answer that the rules judge
Verify = Callable[[Sequence[str], str], bool]  # Math-Verify: forms of the gold, response


class _TooLong(BaseException):  # not an Exception, so that no handler in between catches it
    """Guards and rules exceeded their time limit."""


def accepted_by(gold: str, response: str) -> str | None:
    """The name of what accepts a response; None: it is wrong.

    Args:
        gold: the correct answer as `math_verify.parse` takes it, such as "$(3,4]$".
        response: a model's; its last box counts, else its last line.

    Returns:
        "math_verify", a rule's name such as "intervals", or several joined by "+".

    Whatever cannot be read is wrong, and raises nothing. Limits of time, Math-Verify's and LIMIT_S,
    need signals and hold in the main thread only.
    """
    golds = (gold,)
    return accepted_after(golds, response, _math_verify(golds, response), _math_verify)


def accepted_after(
    golds: Sequence[str], response: str, correct: bool, verify: Verify
) -> str | None:
    """As `accepted_by`, for a caller that has asked Math-Verify itself.

    Args:
        golds: forms of the one correct answer, of which the first is the usual one.
        correct: Math-Verify's verdict on the response.
        verify: Math-Verify's judgement, asked again about what it could not read the first time;
            must not raise.
    """
    try:
        with _limited():
            if takes_back(response):
                return None
            plain, why = plain_response(response)
            if why and (why != LAST_BOX or not correct):
                rule = _rule(golds, plain, verify(golds, plain), verify)
                return (
                    (MATH_VERIFY if correct else why)
                    if rule == MATH_VERIFY
                    else rule and f"{why}+{rule}"
                )
            return _rule(golds, response, correct, verify)
    except (Exception, RecursionError, _TooLong):
        return None


def _rule(golds: Sequence[str], response: str, correct: bool, verify: Verify) -> str | None:
    if correct and boxes_differ(
        response
    ):  # the last one must be it; all together for a gold of several values
        together = [all_boxes(response)] if _SEVERAL.search(golds[0]) else []
        if not any(
            verify(golds, each) for each in (rf"\boxed{{{final_answer(response)}}}", *together)
        ):
            return None
    if correct:
        return None if is_gaming(golds, response) else MATH_VERIFY
    return _decide(golds, response, verify)


def _decide(golds: Sequence[str], response: str, verify: Verify) -> str | None:
    """The name of the rule by which a response is correct that Math-Verify rejected, or None."""
    answer = final_answer(response)
    if not answer or len(answer) > MAX_CHARACTERS or any(map(boxes_differ, (response, *golds))):
        return None
    plain = [final_answer(gold) if "\\boxed" in gold else gold for gold in golds]
    for gold in plain:
        rule = compare(gold, answer)
        if rule is not None:
            return rule
    unreadable = not (_is_readable(plain[0]) or is_too_much(repair(plain[0]), repair(answer)))
    unread = single_backslashes(plain[0]) != plain[0] or "\\boxed" not in response
    if unreadable and unread and not is_gaming(plain, response):
        gold = single_backslashes(plain[0]).replace("$", "")
        return (
            REPAIRED
            if verify([rf"\boxed{{{gold}}}"], rf"\boxed{{{single_backslashes(answer)}}}")
            else None
        )
    return None


def _is_readable(gold: str) -> bool:
    """Whether the rules can read a gold; if so they decide, without Math-Verify."""
    try:
        return read(conditions(repair(gold))[0]) is not None
    except Unreadable:
        return False


def _math_verify(golds: Sequence[str], response: str) -> bool:
    """Math-Verify's verdict, within its own time limits where signals reach it."""
    from math_verify import parse, verify  # it imports SymPy, which nothing else here needs

    seconds = 5 if _in_main_thread() else None
    try:
        parsed = [each for gold in golds for each in parse(gold, parsing_timeout=seconds)]
        return bool(
            verify(parsed, parse(response, parsing_timeout=seconds), timeout_seconds=seconds)
        )
    except (Exception, RecursionError):
        return False


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _limited() -> Iterator[None]:
    """LIMIT_S of CPU time for the block, then `_TooLong`; no limit outside the main thread."""
    if not _in_main_thread():
        yield
        return

    def stop(_number: int, _frame: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
