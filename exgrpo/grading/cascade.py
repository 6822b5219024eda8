"""Judge an answer that Math-Verify rejected: guards first, then the rules; deterministic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exgrpo.grading.boxes import boxes_differ, final_answer
from exgrpo.grading.comparison import REPAIRED, compare, is_too_much
from exgrpo.grading.guards import is_gaming
from exgrpo.grading.reading import read
from exgrpo.grading.repair import repair, single_backslashes
from exgrpo.grading.trees import Unreadable
from exgrpo.grading.wording import conditions

MATH_VERIFY = "math_verify"
MAX_CHARACTERS = 1_000
Verify = Callable[[Sequence[str], str], bool]  # Math-Verify: gold's forms, answer


def decide(golds: Sequence[str], response: str, verify: Verify) -> str | None:
    """The name of the rule by which a rejected response is correct, several joined by "+"; None: it is wrong.

    Args:
        golds: LaTeX of the right answer, in as many forms as there are (exgrpo.gold_answers.latex_forms).
        verify: Math-Verify's judgement, asked again about what it could not read the first time.
    """
    answer = final_answer(response)
    if not answer or len(answer) > MAX_CHARACTERS or any(map(boxes_differ, (response, *golds))):
        return None
    plain = [final_answer(gold) if "\\boxed" in gold else gold for gold in golds]
    for gold in plain:
        rule = compare(gold, answer)
        if rule is not None:
            return rule
    unreadable = not (is_readable(plain[0]) or is_too_much(repair(plain[0]), repair(answer)))
    unread = single_backslashes(plain[0]) != plain[0] or "\\boxed" not in response
    if unreadable and unread and not is_gaming(plain, response):
        gold = single_backslashes(plain[0]).replace("$", "")
        return REPAIRED if verify([rf"\boxed{{{gold}}}"], rf"\boxed{{{single_backslashes(answer)}}}") else None
    return None


def is_readable(gold: str) -> bool:
    """Whether the rules can read a gold; if so they decide, without Math-Verify."""
    try:
        return read(conditions(repair(gold))[0]) is not None
    except Unreadable:
        return False
