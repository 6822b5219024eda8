"""Checks of single keys: (key, value) -> the value in its type; ValueError if not allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from exgrpo.experience import checked, rules
from exgrpo.open_table import OpenTable
from exgrpo.refusal import refuse

T = TypeVar("T")


def is_null(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))


def boolean(key: str, value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word is True or word == "true":
        return True
    if word is False or word == "false":
        return False
    refuse(key, value, "true or false")


def _number(holds: Callable[[float], bool], allowed: str) -> Callable[[str, object], float]:
    def check(key: str, value: object) -> float:
        number = math.nan if isinstance(value, bool) else checked.number(value)
        if not holds(number):
            refuse(key, value, allowed)
        return number

    return check


fraction = _number(lambda number: 0 <= number <= 1, "a number between 0 and 1")
finite = _number(math.isfinite, "a finite number")
positive = _number(lambda number: 0 < number < math.inf, "a finite number above 0")
seconds = _number(lambda number: 0 < number <= 60, "a number of seconds above 0, at most 60")


def integer(low: int) -> Callable[[str, object], int]:
    def holds(number: float) -> bool:
        return low <= number < 2**53 and number.is_integer()

    check = _number(holds, f"an integer of at least {low}")
    return lambda key, value: int(check(key, value))


def path(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        refuse(key, value, "a path")
    return value


def optional(check: Callable[[str, object], T]) -> Callable[[str, object], T | None]:
    """The check of a key that may also be null."""

    def check_or_null(key: str, value: object) -> T | None:
        if is_null(value):
            return None
        try:
            return check(key, value)
        except ValueError as error:
            raise ValueError(f"{error}, or null") from None

    return check_or_null


def one_of(*allowed: str) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            refuse(key, value, f"one of {', '.join(allowed)}")
        return value

    return check


def rule(table: OpenTable[Any], *others: str) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if value not in others:
            table.load(key, str(value), others)
        return str(value)

    return check


def bucket_manager(key: str, value: object) -> str | Literal[False]:
    word = value.strip().lower() if isinstance(value, str) else value
    if is_null(value) or word is False or word == "false":
        return False
    rules.BUCKET_WEIGHTS.load(key, str(value), ("False",))
    return str(value)
