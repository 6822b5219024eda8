"""Compare a decimal with the number that it rounds, by its written digits."""

from __future__ import annotations

import re
from fractions import Fraction

import mpmath

from math_verify_rules.evaluation import DIGITS, number
from math_verify_rules.identity import constant
from math_verify_rules.nodes import Expression

_DECIMAL = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)\.(\d+)")
ENOUGH = 3  # significant digits of a rounded number


def rounds(gold: Expression, answer: Expression) -> bool:
    """Whether one is a decimal that rounds the other.

    The gold is one: the answer is exact (a fraction, a mixed number, a root) and cut off or rounded
    gives the gold; or is a decimal one digit shorter where the gold itself was rounded (at least
    three digits behind the point, the last neither 0 nor 5). The gold is a fraction: the answer is
    a decimal that rounds it to four significant digits or more. At least three significant digits
    in all; a whole number rounds nothing.
    """
    a, b = exact, _ = constant(gold.tree), constant(answer.tree)
    texts = [re.sub(r"\s*(?:\\?%|percent)$|\\\$|\s", "", each.text) for each in (gold, answer)]
    mine, theirs = digits_behind_the_point(texts[0]), digits_behind_the_point(texts[1])
    if a is None or b is None or (mine is None and theirs is None) or (a < 0) != (b < 0):
        return False
    if "\\repeating" in gold.text + answer.text:
        return False
    if (gold.tree[0] == "pct") != (answer.tree[0] == "pct"):
        return False
    scale = 100 if gold.tree[0] == "pct" else 1
    with mpmath.workdps(DIGITS):
        a, b = number(a) * scale, number(b) * scale
        if mine is not None and theirs is not None:
            was_rounded = mine >= 3 and texts[0][-1] not in "05"
            return (
                mine - theirs == 1
                and was_rounded
                and _significant(texts[1]) >= ENOUGH
                and near(a, b, theirs)
            )
        if mine is not None:
            whole = answer.tree[0] == "num" or "." in answer.text
            return (
                not whole
                and _significant(texts[0]) >= ENOUGH
                and (near(b, a, mine) or cut_off(b, a, mine))
            )
        written_out = not isinstance(exact, Fraction) or exact.denominator > 1
        return (
            written_out
            and theirs is not None
            and _significant(texts[1]) > ENOUGH
            and near(a, b, theirs)
        )


def digits_behind_the_point(text: str) -> int | None:
    """Digits after the point of a plain decimal; None for anything else."""
    match = _DECIMAL.fullmatch(text)
    return len(match[1]) if match else None


def _significant(text: str) -> int:
    return len(re.sub(r"[^0-9]", "", text).lstrip("0"))


def near(exact: mpmath.mpf, decimal: mpmath.mpf, digits: int) -> bool:
    """Whether a decimal with this many digits is a rounded number."""
    return bool(abs(exact - decimal) <= mpmath.mpf(10) ** -digits / 2 * (1 + mpmath.mpf(10) ** -30))


def cut_off(exact: mpmath.mpf, decimal: mpmath.mpf, digits: int) -> bool:
    """Whether a decimal with this many digits is a truncated number."""
    return bool(
        0 <= abs(exact) - abs(decimal) < mpmath.mpf(10) ** -digits * (1 - mpmath.mpf(10) ** -30)
    )
