"""Words around a value: units, ordinals, what is counted, conditions after an answer; and answers
that are words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from math_verify_rules.changing import CHANGING, PHRASES
from math_verify_rules.numerals import in_digits
from math_verify_rules.repair import ONE_LETTER_UNITS
from math_verify_rules.trees import FUNCTIONS, Unreadable

_UNITS = "pct cm mm km kg mg ml kJ kW kN Hz Pa ft yd lb lbs oz cc rad mph kph rpm min sec hr hrs"
UNITS = frozenset(_UNITS.split())
_SAME_UNITS = {
    "metre": "m", "meter": "m", "centimeter": "cm", "centimetre": "cm", "kilometer": "km", "kilometre": "km",  # noqa: E501
    "gram": "g", "kilogram": "kg", "second": "s", "sec": "s", "hour": "h", "hr": "h", "foot": "ft", "feet": "ft",  # noqa: E501
    "liter": "L", "litre": "L", "minute": "min", "dollar": "$", "dollars": "$", "inches": "inch",
}  # fmt: skip
_ORDINAL = re.compile(r"\b(\d+)\s*(?:\^\s*\{?\s*)?\"?\s*(?:st|nd|rd|th)\b\"?\s*\}?")
_WORD = re.compile(
    r'"([^"]*)"(?:\s*\^\s*\{?([23])\}?)?|(?<![\\a-zA-Z_])([A-Za-z]+)\.?(?:\s*\^\s*\{?([23])\}?(?!\w))?'
)
_BEFORE_A_WORD = re.compile(r" +[A-Za-z]{4}")
_MAX_WORDS = 5
_SETS = r"\\math(?:bb|bf)\s*\{?\s*([A-Z])\s*\}?\s*((?:[_^]\s*(?:\{[^{}]*\}|[+*\d]))*)"
_NAMES = r"\\?[a-zA-Z](?:_\w)?(?:\s*,\s*\\?[a-zA-Z](?:_\w)?)*"
_CONDITIONS = (
    re.compile(rf"(?:(?:[,;(]|\b(?:where|for|with|and|all|any|every|each|some)\b)\s*(?:\b(?:where|for|with|and)\b)?\s*"
               rf"(?:\b(?:all|any|every|each|some)\b)?\s*{_NAMES}|(?<=[\s)}}])\\?[a-zA-Z](?:_\w)?)\s*\\in\s*{_SETS}\s*\)?$"),
    re.compile(rf"[,;]?\s*\(?(?:\b(?:where|for|with)\b)\s*(?:\b(?:all|any|every|each|some)\b)?\s*{_NAMES}\s*\\in\s*{_SETS}\s*\)?(?=,|;|\sand\b|\sor\b)"),
)  # fmt: skip
_SPOKEN = re.compile(
    rf"[,;]?\s*\(?\b(?:where|for|with)\b\s*(?:\b(?:all|any|every|each|some)\b)?\s*(?:{_NAMES}\s*(?:\b(?:is|are)\b)?)?"
    r"\s*(?:\b(?:an?|any|some|the)\b)?\s*(?:arbitrary\s+)?(integers?|real "
    r"numbers?|reals?|constants?|real constants?|"
    rf"(?<=all )\s*{_NAMES}|(?<=every )\s*{_NAMES})\s*(?:\b{_NAMES})?\s*\)?(?=$|,|;|\sand\b|\sor\b)"
)


@dataclass(frozen=True)
class Conditions:
    """What an answer says of its letters: the sets that it names for them, "Z" or "R", and the
    letters.
    """

    sets: frozenset[str]
    letters: frozenset[str]


def conditions(text: str) -> tuple[str, Conditions]:
    r"""An answer without "for all x \in \mathbb{R}", "where C is a constant"; and what is said
    there.
    """
    named: set[str] = set()
    declared: set[str] = set()
    for pattern in (*_CONDITIONS, _SPOKEN):
        at = 0
        while match := pattern.search(text, at):
            at = match.end()
            if text[: match.start()].strip(" ,;("):
                named.add(_domain(match))
                declared |= set(
                    re.findall(
                        r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", match[0].partition("\\in")[0]
                    )
                ) - {"a"}
                declared |= (
                    {"a"} if re.search(r"\ba\s*\\in|constant a\b|, a\b(?= is)", match[0]) else set()
                )
                text, at = f"{text[: match.start()]} {text[at:]}", match.start()
    return text.strip(" ,;"), Conditions(frozenset(named - {""}), frozenset(declared))


def has_words(text: str) -> bool:
    """Whether a text contains words; ordinals and units look like products of letters, too."""
    return bool(_ORDINAL.search(text)) or any(_is_word(match) for match in _WORD.finditer(text))


def _domain(match: re.Match[str]) -> str:
    if match.re is _SPOKEN:
        return "Z" if match[1].startswith("integer") else ""
    return re.sub(r"[{}\s]", "", match[1] + match[2])


def quantity(text: str) -> tuple[str, frozenset[str]]:
    r"""The value in a text and the words before or after it. Raises: Unreadable.

    It is unreadable, too, where a word changes the value: "5 thousand", "not 5".
    A run of letters is a word where it has four, is a known unit, or was marked as text; one in the
    midst of the value makes it unreadable.
    """
    spoken = in_digits(text)
    if re.fullmatch(r"-?\d+", spoken) and spoken != text:
        return spoken, frozenset(("number",))
    text = spoken
    if text.count(")") > text.count("("):
        raise Unreadable(text)  # "fxy) = y"
    text, ordinals = _ORDINAL.subn(r"\1 ", text)
    text, dollars = re.subn(r"\\\$", " ", text)
    text = re.sub(r"\bdegrees?\b|\"degrees?\"", "°", text)
    words = [match for match in _WORD.finditer(text) if _is_word(match)]
    outside = _WORD.sub(lambda match: "\0" if _is_word(match) else match[0], text)
    value = outside.strip("\0 ./*-(),").strip() if words else text
    opened = outside[: outside.find(value)] if value else ""
    if (
        "\0" in value
        or not value
        or len(words) > _MAX_WORDS
        or not (words or ordinals or dollars or "°" in text)
    ):
        raise Unreadable(text)
    if "-" in opened:
        value = "-" + value
    if value.count("(") > value.count(")"):
        value += ")"
    found = frozenset(_unit(match) for match in words) | ({"$"} if dollars else set())
    said = {(match[1] or match[3] or "").strip().lower() for match in words}
    if (found | said) & CHANGING or PHRASES.search(spoken.lower().replace('"', " ")):
        raise Unreadable(text)
    counted = found - {"the", "a", "an", "is", "are", "of", "and", "number", "answer"}
    return value, counted | ({"#"} if ordinals else set())


def _is_word(match: re.Match[str]) -> bool:
    word = match[3]
    behind_a_number = match.string[: match.start()].rstrip()[-1:] in tuple('0123456789}"/)')
    if (
        word is None
        or (word in UNITS and behind_a_number)
        or (len(word) == 3 and _BEFORE_A_WORD.match(match.string, match.end()))
    ):
        return True
    return (len(word) > 3 and word not in FUNCTIONS) or word.lower() in (
        "the",
        "is",
        "are",
        "of",
        "per",
        "not",
        "day",
    )


def _unit(match: re.Match[str]) -> str:
    word = (match[1] or match[3] or "").strip()
    if word not in ONE_LETTER_UNITS:
        word = word.lower()
    word = _SAME_UNITS.get(word) or _SAME_UNITS.get(word.removesuffix("s")) or word
    word = word if len(word) < 4 else word.removesuffix("s")
    return word + (match[2] or match[4] or "")


def words(text: str) -> tuple[str, ...]:
    """An answer of only words, without articles and punctuation, in lower case; empty if it is not
    one.
    """
    plain = text.replace('"', " ").lower()
    if not re.fullmatch(r"(?!\s*!)[a-z0-9\s.,;:!?'()-]*", plain) or not re.search(
        r"[a-z]{3}", plain
    ):
        return ()
    return tuple(
        word
        for word in re.findall(r"[a-z]+|-?[0-9.]*[0-9]|-(?=\s*\()", plain)
        if word not in ("the", "a", "an")
    )
