"""Who judged a trajectory, as a text; a packed trajectory holds a number that stands for it in this process."""

from __future__ import annotations

_TEXTS: list[str | None] = [None]  # number -> text; only grows, a run has a handful
_NUMBERS: dict[str | None, int] = {None: 0}


def number_of(grader: str | None) -> int:
    """The number of a text; it is valid in this process only, so files hold the text."""
    number = _NUMBERS.get(grader)
    if number is None:
        number = _NUMBERS[grader] = len(_TEXTS)
        _TEXTS.append(grader)
    return number


def text_of(number: int) -> str | None:
    """The text of a number; one object for all trajectories of a grader."""
    return _TEXTS[number]
