"""Units of measure: 500 cm is 5 m, 2 hours 30 minutes is 150 minutes, 25 m^2 is not 25 cm^2.

Only units in the table are known. A single letter is a unit only where it was marked as text, since
"5 m" may be a product.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import mpmath

from math_verify_rules.evaluation import DIGITS, number
from math_verify_rules.expressions import parse
from math_verify_rules.identity import constant
from math_verify_rules.numerals import in_digits
from math_verify_rules.trees import Unreadable

Dimensions = frozenset[tuple[str, int]]
_LENGTH, _MASS, _TIME, _VOLUME, _MONEY = "length", "mass", "time", "volume", "money"
_TABLE: dict[str, tuple[str, Fraction, str]] = {  # a unit: what it measures, how much, its names
    "m": (_LENGTH, Fraction(1), "metre meter"),
    "km": (_LENGTH, Fraction(1000), "kilometer kilometre"),
    "cm": (_LENGTH, Fraction(1, 100), "centimeter centimetre"),
    "dm": (_LENGTH, Fraction(1, 10), "decimeter decimetre"),
    "mm": (_LENGTH, Fraction(1, 1000), "millimeter millimetre"),
    "ft": (_LENGTH, Fraction(3048, 10_000), "foot feet"),
    "inch": (_LENGTH, Fraction(254, 10_000), "inches"),
    "yd": (_LENGTH, Fraction(9144, 10_000), "yard"),
    "mi": (_LENGTH, Fraction(1_609_344, 1000), "mile"),
    "g": (_MASS, Fraction(1), "gram"),
    "kg": (_MASS, Fraction(1000), "kilogram"),
    "mg": (_MASS, Fraction(1, 1000), "milligram"),
    "lb": (_MASS, Fraction(45_359_237, 100_000), "lbs pound"),
    "oz": (_MASS, Fraction(45_359_237, 1_600_000), "ounce"),
    "s": (_TIME, Fraction(1), "sec secs second"),
    "min": (_TIME, Fraction(60), "mins minute"),
    "h": (_TIME, Fraction(3600), "hr hrs hour"),
    "day": (_TIME, Fraction(86_400), "days"),
    "week": (_TIME, Fraction(604_800), "weeks"),
    "month": ("months", Fraction(1), "months"),
    "year": ("months", Fraction(12), "years yr yrs"),
    "L": (_VOLUME, Fraction(1), "liter litre"),
    "mL": (_VOLUME, Fraction(1, 1000), "ml milliliter millilitre"),
    "dollar": (_MONEY, Fraction(1), "dollars usd"),
    "cent": (_MONEY, Fraction(1, 100), "cents"),
    "N": ("force", Fraction(1), "newton"),
    "J": ("energy", Fraction(1), "joule"),
    "W": ("power", Fraction(1), "watt"),
    "V": ("voltage", Fraction(1), "volt"),
    "Hz": ("frequency", Fraction(1), "hertz"),
}
_NAMES = {
    name: unit
    for unit, (_what, _size, others) in _TABLE.items()
    for name in (unit, *others.split())
}
_SPEEDS = {"mph": "mi per hour", "kph": "km per hour"}
_SIGN = re.compile(
    r'\s*(?:"([^"]+)"|([A-Za-z]+)\.?|(/|\bper\b)|\^\s*\{?\s*(-?\d)\s*\}?|([*~]))', re.IGNORECASE
)  # one piece of what follows a number
_NUMBER = r"(?:-?[\d.,]*\d(?:\s*\*\s*10\s*\^\s*\{?\s*-?\d+\s*\}?|\s*/\s*\d+)?|-?\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})"  # noqa: E501
_AND = re.compile(r"(?<=[a-zA-Z\"])\s*,?\s*\band\b|(?<=[a-zA-Z\"])\s*,")
_MEASURE = re.compile(
    rf"\s*(?P<money>\\?\$)?\s*(?P<number>{_NUMBER})\s*(?P<unit>(?:\^\s*\{{?\s*-?\d|[^\d\\$,^])*)"
)
_FRACTION = re.compile(
    r'\\frac\s*\{\s*("[^{}]*?(?:\^\s*\d)?)\s*\}\s*\{\s*("[^{}]*?(?:\^\s*\{?\d\}?)?)\s*\}'
)
_DEGREES, _RADIANS = re.compile(r"°|\bdegrees?\b"), re.compile(r"\brad(?:ians?)?\b")
MAX_PARTS = 3  # hours, minutes and seconds


@dataclass(frozen=True)
class Measure:
    """A quantity in base units; `unit` is its size in them, 1000 for a km, of its only or first
    unit.
    """

    value: mpmath.mpf
    dimensions: Dimensions
    unit: Fraction


def measure(text: str) -> Measure | None:
    """The quantity that a repaired text states: a value with known units, or a sum of such; None
    for anything else.
    """
    text = _AND.sub(" ", in_digits(_FRACTION.sub(r"\1/\2", text))).strip(" .")
    found: list[Measure] = []
    at = 0
    while at < len(text):
        part = _MEASURE.match(text, at)
        one = part and _one(part)
        if not part or one is None or len(found) == MAX_PARTS or part.end() == at:
            return None
        if found and (
            one.dimensions != found[0].dimensions or one.unit >= found[-1].unit or one.value < 0
        ):
            return None  # "2 hours 5 hours" is no sum
        found.append(one)
        at = part.end()
    if not found:
        return None
    with mpmath.workdps(DIGITS):
        return Measure(
            sum((one.value for one in found), mpmath.mpf(0)), found[0].dimensions, found[0].unit
        )


def equal_measures(gold: str, answer: str) -> bool | None:
    """Whether two texts state the same quantity, exactly; None unless both have units that are
    known.
    """
    mine, theirs = measure(gold), measure(answer)
    if mine is None or theirs is None:
        return None
    with mpmath.workdps(DIGITS):
        near = abs(mine.value - theirs.value) <= mpmath.mpf(10) ** -30 * abs(mine.value)
    return mine.dimensions == theirs.dimensions and bool(near)


def other_units(gold: str, answer: str) -> bool:
    """Whether two texts, not equal by any rule, state quantities in units of different size or
    kind.
    """
    if any(
        _DEGREES.search(one) and _RADIANS.search(other)
        for one, other in ((gold, answer), (answer, gold))
    ):
        return True
    mine, theirs = measure(gold), measure(answer)
    if (
        mine is None
        or theirs is None
        or (mine.dimensions == theirs.dimensions and mine.unit == theirs.unit)
    ):
        return False
    return not equal_measures(gold, answer)


def _one(part: re.Match[str]) -> Measure | None:
    words = part["unit"].strip(' .~"') and part["unit"]
    known = _units(words) if words else (frozenset(), Fraction(1))
    if known is None:
        return None
    dimensions, unit = known
    if part["money"]:
        if dimensions:
            return None
        dimensions = frozenset(((_MONEY, 1),))
    try:
        value = constant(parse(part["number"]))
    except Unreadable:
        return None
    if value is None or not dimensions:
        return None
    with mpmath.workdps(DIGITS):
        return Measure(number(value) * number(unit), dimensions, unit)


def _units(text: str) -> tuple[Dimensions, Fraction] | None:
    """What units after a number measure, and their size together."""
    powers: Counter[str] = Counter()
    size, sign, at, last = Fraction(1), 1, 0, ""
    square = 1
    text = _SPEEDS.get(text.strip(' .~"'), text.strip(" .~"))
    while at < len(text):
        piece = _SIGN.match(text, at)
        if piece is None:
            return None
        at = piece.end()
        word = piece[1] or piece[2]
        if piece[3] or word == "per":
            sign = -1
        elif piece[4]:
            if not last:
                return None
            more = int(piece[4]) - 1
            size, last = _times(powers, last, sign * more, size), ""
        elif word in ("square", "sq", "cubic"):
            square = 3 if word == "cubic" else 2
        elif word:
            unit = _known(word, quoted=bool(piece[1]))
            if unit is None:
                return None
            size, last, square = _times(powers, unit, sign * square, size), unit, 1
    return frozenset((what, power) for what, power in powers.items() if power), size


def _times(powers: Counter[str], unit: str, power: int, size: Fraction) -> Fraction:
    powers[_TABLE[unit][0]] += power
    return size * _TABLE[unit][1] ** power


def _known(name: str, quoted: bool) -> str | None:
    name = name.strip()
    if len(name) == 1:
        return name if quoted and name in _TABLE else None
    return (
        _NAMES.get(name) or _NAMES.get(name.lower()) or _NAMES.get(name.lower().removesuffix("s"))
    )
