"""Judge an answer that Math-Verify rejected: guards first, then the rules; deterministic."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from exgrpo.grading.boxes import boxes_differ, final_answer
from exgrpo.grading.families import renamings, same_family
from exgrpo.grading.guards import is_gaming
from exgrpo.grading.nodes import Node, rename
from exgrpo.grading.reading import read
from exgrpo.grading.repair import repair, single_backslashes
from exgrpo.grading.rules import same
from exgrpo.grading.trees import Unreadable
from exgrpo.grading.wording import conditions, words

MATH_VERIFY, REPAIRED, WORDS = "math_verify", "repaired_latex", "words"
# order of the names in a verdict; numeric identity is named only if it decided alone
ORDER = (
    REPAIRED, WORDS, "renamed_variables", "integer_families", "piecewise", "intervals", "degrees_radians",
    "units_and_ordinals",
    "decimals", "equations", "dropped_left_side", "lists", "numeric_identity",
)  # fmt: skip
MAX_CHARACTERS = 1_000
_SPACES = re.compile(r"(?<![0-9a-zA-Z]) | (?![0-9a-zA-Z])")
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


def compare(gold: str, answer: str) -> str | None:
    """As above for two answers, without Math-Verify."""
    gold, answer = repair(gold), repair(answer)
    if not re.search(r"\w", gold) or not re.search(r"\w", answer) or is_too_much(gold, answer):
        return None
    if _SPACES.sub("", gold) == _SPACES.sub("", answer):
        return REPAIRED
    (gold, mine), (answer, theirs) = conditions(gold), conditions(answer)
    if mine and theirs and mine != theirs:
        return None
    if words(gold) and words(gold) == words(answer):
        return WORDS
    try:
        return _named(_judge(read(gold), read(answer), "Z" in mine))
    except Unreadable:
        return None


def is_too_much(gold: str, answer: str) -> bool:
    """Whether an answer is far longer than the gold, such as a list of everything that might be right."""
    return len(answer) > 4 * len(gold) + 150


def _judge(gold: Node, answer: Node, integers: bool) -> frozenset[str] | None:
    used = same(gold, answer)
    if used is not None:
        return used
    if same_family(gold, answer, integers):
        return frozenset(("integer_families",))
    for names in renamings(gold, answer, integers):
        used = same(gold, rename(answer, names))
        if used is not None:
            return used | {"renamed_variables"}
    return None


def _named(used: frozenset[str] | None) -> str | None:
    if used is None:
        return None
    return "+".join(name for name in ORDER if name in used and (name != "numeric_identity" or used == {name}))
