"""Times of day and days of the year: 3:45 PM is 15:45, March 5th is 5 March."""

from __future__ import annotations

import re

MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_ORDINALS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
]
_CLOCK = re.compile(r'(\d{1,2}):(\d{2})\s*"?\s*(?:([ap])\.?\s*m\b\.?)?\s*"?', re.IGNORECASE)
_DOTTED = re.compile(r"(\d{1,2})[.h](\d{2})")  # 10.45 and 10h45, where 10:45 is asked
_DAY = rf"(?:the )?(\d{{1,2}}|{'|'.join(_ORDINALS)})\s*(?:\^?\{{?(?:st|nd|rd|th)\}}?)?"
_NAME = rf"({'|'.join(month[:3] + f'(?:{month[3:]})?' for month in MONTHS)})\.?"
_MONTH_FIRST = re.compile(rf"{_NAME}\s*,?\s*{_DAY}(?:\s*,?\s*(\d{{4}}))?")
_DAY_FIRST = re.compile(rf"{_DAY}\s*(?:of )?{_NAME}(?:\s*,?\s*(\d{{4}}))?")


def same_time(gold: str, answer: str) -> bool | None:
    """Whether two repaired answers are the same time of day or the same date; None if neither side
    is one for sure.
    """
    if clock(gold) is not None and (dotted := _DOTTED.fullmatch(answer.strip())):
        return clock(gold) == clock(f"{dotted[1]}:{dotted[2]}")
    for read in (clock, date):
        mine, theirs = read(gold), read(answer)
        if mine is not None or theirs is not None:
            sure = read is date or any("m" in text.lower() for text in (gold, answer))
            return mine == theirs if sure else None
    return None


def clock(text: str) -> int | None:
    """A time of day in minutes after midnight."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    hour, minute, half = int(match[1]), int(match[2]), (match[3] or "").lower()
    if minute > 59 or hour > (12 if half else 23) or (half and not hour):
        return None
    return (hour % 12 + (12 if half == "p" else 0) if half else hour) * 60 + minute


def date(text: str) -> tuple[int, int, int] | None:
    """Month, day and year (0 without one) of a date."""
    plain = " ".join(text.replace('"', " ").lower().split())
    first, later = _MONTH_FIRST.fullmatch(plain), _DAY_FIRST.fullmatch(plain)
    match = first or later
    if match is None:
        return None
    month, day = (match[1], match[2]) if first else (match[2], match[1])
    number = int(day) if day.isdigit() else _ORDINALS.index(day) + 1
    return [name[:3] for name in MONTHS].index(month[:3]) + 1, number, int(match[3] or 0)
