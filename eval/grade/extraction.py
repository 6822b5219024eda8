r"""Find the answer in a response: \boxed{...}, or the letter of a multiple-choice question."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from exgrpo import full_grader

__all__ = ["DIGITS", "LETTERS", "boxed", "choice"]

boxed: Callable[[str], Iterator[str]] = full_grader.package().boxed
LETTERS, DIGITS = "A-J", "1-9"  # choices are lettered; some of ARC's are numbered
_MARKUP = re.compile(
    r"\\(?:(?:text|math)(?:bf|it|rm|sf)?|bf|rm|left|right)(?![a-zA-Z])|\\[,;! ]|[{}$*_~]"
)
_STATED = r"(?:answer|choice|option)\W{{0,6}}(?:is|:|=)\W{{0,3}}(?:(?:option|choice)\s*)?[(\[]?\s*(?P<letter>[{letters}])"  # noqa: E501
_CLOSED = re.compile(r"\s*[)\].:,;!]|\s*$|\s+(?:because|since|as)\b", re.IGNORECASE | re.MULTILINE)


def choice(text: str, letters: str = LETTERS) -> str | None:
    r"""The letter of a response's final choice, in upper case; None if it has none.

    The last \boxed{} that contains a letter counts, with any markup or text after it
    ("\textbf{(c)}", "C. a fish"); otherwise the last "ANSWER: C" or "answer is (C)"; otherwise a
    response that is only a letter, or one choice in one line ("C) a fish"). A capital A or I that
    begins a phrase ("the answer is A planet") is not a letter.

    Args:
        letters: the possible letters, LETTERS or DIGITS.
    """
    for content in boxed(text):
        if letter := _alone(content, letters, r"[)\].:].*"):
            return letter
    plain = _MARKUP.sub("", text)
    last = None
    for stated in re.finditer(_STATED.format(letters=letters), plain, re.IGNORECASE):
        if _CLOSED.match(plain, stated.end()):
            last = stated["letter"].upper()
    return last or _alone(text, letters, r"[)\].:]+|\)[^\n]*")


def _alone(text: str, letters: str, rest: str) -> str | None:
    """The letter of a text that is only a letter: "C", "(c)", or one followed by a match of
    `rest`.
    """
    bare = _MARKUP.sub("", text).strip()
    match = re.fullmatch(rf"[(\[]?\s*([{letters}])\s*(?:{rest})?", bare, re.IGNORECASE | re.DOTALL)
    return match[1].upper() if match else None
