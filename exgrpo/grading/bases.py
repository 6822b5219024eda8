"""Numbers in another base than ten, 1101_2: their digits and their base."""

from __future__ import annotations

import re

from exgrpo.grading.number_words import whole_number

_DIGITS = re.compile(r"\(?\s*([0-9][0-9A-Fa-f]*)\s*\)?\s*_\s*(?:\{\s*\(?\"?\s*(\w+)\s*\"?\)?\s*\}|(\d))")


def value(text: str) -> tuple[int, int] | None:
    """The value and the base of digits with a base; None if it is anything else, or a digit is too large for it."""
    match = _DIGITS.fullmatch(text.strip())
    if match is None:
        return None
    written = match[2] or match[3]
    base = int(written) if written.isdigit() else whole_number(written)
    if base is None or not 2 <= base <= 36:
        return None
    try:
        return int(match[1], base), base
    except ValueError:
        return None


def same_digits(gold: str, answer: str) -> bool:
    """Whether both are the same number in the same base."""
    mine = value(gold)
    return mine is not None and mine == value(answer)


def another_base(gold: str, answer: str) -> bool:
    """ "1101_3" for 1101_2, which Math-Verify reads as a name with an index."""
    mine, theirs = value(gold), value(answer)
    return mine is not None and theirs is not None and mine != theirs
