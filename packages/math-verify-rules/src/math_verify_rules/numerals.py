"""Numbers in words and in another base: "thirty-one" is 31, "negative 7" is -7; 1101_2 is 13 in
base 2.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: n for n, word in enumerate(_SMALL)} | {
    word: 10 * n for n, word in enumerate(_TENS, 2)
}
_SHARES = {
    "half": 2, "quarter": 4, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,  # noqa: E501
    "tenth": 10, "eleventh": 11, "twelfth": 12, "hundredth": 100, "thousandth": 1000,
}  # fmt: skip
_NEGATIVE = re.compile(r'\s*"?(?:negative|minus)\b"?\s*(?=["\w.\\])', re.IGNORECASE)
_LEADING = re.compile(r'(-?)\s*("?)([A-Za-z]+(?:[- ][A-Za-z]+)*)("?)')
_DIGITS = re.compile(
    r"\(?\s*([0-9][0-9A-Fa-f]*)\s*\)?\s*_\s*(?:\{\s*\(?\"?\s*(\w+)\s*\"?\)?\s*\}|(\d))"
)
MAX_WORDS = 10


def whole_number(text: str) -> int | None:
    """The number from 0 to 999,999 that words state, such as "two hundred and five"; None for
    anything else.
    """
    words = re.findall(r"[a-z]+", text.lower())
    if not words or len(words) > MAX_WORDS:
        return None
    if "thousand" not in words:
        return _below_thousand(words)
    at = words.index("thousand")
    above, rest = _below_thousand(words[:at]), words[at + 1 :]
    below = _below_thousand(rest) if rest else 0
    return None if not above or below is None else 1000 * above + below


def fraction(text: str) -> Fraction | None:
    """The fraction that words state: "three eighths", "one half", "two and a quarter"; None for
    anything else.
    """
    words = re.findall(r"[a-z]+", text.lower())
    if len(words) < 2 or len(words) > MAX_WORDS:
        return None
    name = "half" if words[-1] in ("half", "halves") else words[-1].removesuffix("s")
    if name not in _SHARES:
        return None
    whole: int | None = 0
    above = words[:-1]
    if "and" in above:
        at = len(above) - 1 - above[::-1].index("and")
        whole, above = whole_number(" ".join(above[:at])), above[at + 1 :]
    count = 1 if above in (["a"], ["an"]) else whole_number(" ".join(above))
    return None if whole is None or not count else whole + Fraction(count, _SHARES[name])


def in_digits(text: str) -> str:
    """A text with digits instead of the number in words that it begins with; unchanged
    without one.
    """
    text = (
        _NEGATIVE.sub("-", text.strip(), count=1) if _NEGATIVE.match(text.strip()) else text.strip()
    )
    words = _LEADING.match(text)
    if words is None:
        return text
    sign, quote, run, _closing = words.groups()
    pieces = re.split(r"([- ])", run)
    for count in range(len(pieces), 0, -2):
        value = whole_number("".join(pieces[:count]))
        if value is not None:
            rest = "".join(pieces[count + 1 :])
            rest = f" {quote}{rest}{quote}" if rest else ""
            return f"{sign}{value}{rest}{text[words.end() :]}"
    return text


def _below_thousand(words: list[str]) -> int | None:
    if "hundred" not in words:
        return _below_hundred(words)
    at = words.index("hundred")
    hundreds = _below_hundred(words[:at])
    rest = words[at + 1 :]
    rest = rest[1:] if rest[:1] == ["and"] else rest
    below = _below_hundred(rest) if rest else 0
    return None if not hundreds or hundreds > 9 or below is None else 100 * hundreds + below


def _below_hundred(words: list[str]) -> int | None:
    values = [_VALUES.get(word) for word in words]
    if len(values) == 1:
        return values[0]
    if len(values) == 2 and values[0] and values[1] and values[0] >= 20 and values[1] < 10:
        return values[0] + values[1]
    return None


def in_base(text: str) -> tuple[int, int] | None:
    """The value and the base of digits with a base; None if it is anything else, or a digit is too
    large for it.
    """
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
    mine = in_base(gold)
    return mine is not None and mine == in_base(answer)


def another_base(gold: str, answer: str) -> bool:
    """ "1101_3" for 1101_2, which Math-Verify reads as a name with an index."""
    mine, theirs = in_base(gold), in_base(answer)
    return mine is not None and theirs is not None and mine != theirs
