"""Compare two answers by every rule, without Math-Verify: as text, as words, as trees."""

from __future__ import annotations

import re

from math_verify_rules.choices import same_choice
from math_verify_rules.families import Declared, renamings, same_family
from math_verify_rules.nodes import Node, rename
from math_verify_rules.numerals import same_digits
from math_verify_rules.phrases import same_phrase
from math_verify_rules.reading import read
from math_verify_rules.repair import repair
from math_verify_rules.rules import same
from math_verify_rules.trees import Unreadable
from math_verify_rules.units import equal_measures
from math_verify_rules.wording import conditions, words

REPAIRED, WORDS = "repaired_latex", "words"
CHOICES, UNITS, BASES = "choices", "units_and_ordinals", "bases"
# order of the names in a verdict; numeric identity is named only if it decided alone
ORDER = (
    REPAIRED, WORDS, CHOICES, BASES,
    "renamed_variables", "integer_families", "piecewise", "intervals", "degrees_radians",
    "units_and_ordinals",
    "decimals", "equations", "dropped_left_side", "ratios", "remainders", "lists", "numeric_identity",  # noqa: E501
)  # fmt: skip
_BUILDER = re.compile(r"\\\{\s*(\\?[a-zA-Z]+)\s*(?:\\mid(?![a-z])|\||:)\s*(\1\s*=.*)\\\}")
_SPACES = re.compile(r"(?<![0-9a-zA-Z]) | (?![0-9a-zA-Z])")


def compare(gold: str, answer: str) -> str | None:
    """The name of the rule by which an answer equals the gold, several joined by "+"; None: none
    does.
    """
    gold, answer = repair(gold), repair(answer)
    if not re.search(r"\w", gold) or not re.search(r"\w", answer) or is_too_much(gold, answer):
        return None
    if "?" in answer and "?" not in gold:
        return None  # a question states nothing
    if _SPACES.sub("", gold) == _SPACES.sub("", answer):
        return REPAIRED
    (gold, mine), (answer, theirs) = conditions(unpacked(gold)), conditions(unpacked(answer))
    if mine.sets and theirs.sets and mine.sets != theirs.sets:
        return None
    rule = _by_text(gold, answer)
    if rule is not None:
        return rule
    try:
        return _named(
            judge(read(gold), read(answer), "Z" in mine.sets, (mine.letters, theirs.letters))
        )
    except Unreadable:
        return None


def unpacked(text: str) -> str:
    r"""{x | x = k pi, k \in Z} as "x = k pi, k \in Z"; any other text unchanged."""
    match = _BUILDER.fullmatch(text)
    return match[2] if match and "\\in" in match[2] else text


def _by_text(gold: str, answer: str) -> str | None:
    """The rules for answers that are words, letters of choices, measures, or digits in another
    base.
    """
    if (words(gold) and words(gold) == words(answer)) or same_phrase(gold, answer):
        return WORDS
    if same_choice(gold, answer):
        return CHOICES
    if equal_measures(gold, answer):
        return UNITS
    return BASES if same_digits(gold, answer) else None


def is_too_much(gold: str, answer: str) -> bool:
    """Whether an answer is far longer than the gold, such as a list of everything that might be
    right.
    """
    return len(answer) > 4 * len(gold) + 150


def judge(
    gold: Node,
    answer: Node,
    integers: bool = False,
    declared: Declared = (frozenset(), frozenset()),
) -> frozenset[str] | None:
    """The names of the rules by which two answers are equal; None if they are not.

    Args:
        integers: the gold says that its parameter stands for every whole number.
        declared: letters of which the gold and the answer say what they stand for.
    """
    used = same(gold, answer)
    if used is not None:
        return used
    if same_family(gold, answer, integers):
        return frozenset(("integer_families",))
    for names in renamings(gold, answer, integers, declared):
        used = same(gold, rename(answer, names))
        if used is not None:
            return used | {"renamed_variables"}
    return None


def _named(used: frozenset[str] | None) -> str | None:
    if used is None:
        return None
    return "+".join(
        name for name in ORDER if name in used and (name != "numeric_identity" or used == {name})
    )
