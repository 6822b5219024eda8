"""Multiple choice: "(B) 12" and "B. 12" for B; "A, B and D" for ABD."""

from __future__ import annotations

import re

_LETTER = re.compile(r"\(?([A-J])\)?\.?")
_OPTION = re.compile(
    r"(?:\"?(?:option|choice|answer)\"?\s+)?(?:\(([A-J])\)\s|([A-J])\s*[.):](?!\.))\s*([^\s.^*+/_=].*)",
    re.IGNORECASE | re.DOTALL,
)
_SEVERAL = re.compile(r"[A-H](?:\s*(?:,|;|\band\b|,\s*and\b)\s*[A-H])+")
_RUN = re.compile(r"[A-H]{2,6}")
_OTHER = re.compile(r"\([A-J]\)|(?<![\\\w])[A-J](?![\w'(])|\b(?:not|or|nor|neither|either|wrong)\b")


def same_choice(gold: str, answer: str) -> bool:
    """Whether two repaired answers choose the same: a letter, with or without its option's text, or
    letters.
    """
    answer, gold = answer.replace('"', " ").strip(), gold.replace('"', " ").strip()
    letter = _LETTER.fullmatch(gold)
    if letter:
        option = _OPTION.fullmatch(answer)
        return bool(
            option and (option[1] or option[2]) == letter[1] and not _OTHER.search(option[3])
        )
    mine, theirs = _letters(gold), _letters(answer)
    return bool(mine) and mine == theirs


def _letters(text: str) -> frozenset[str]:
    """The letters of several choices, as a list or in alphabetical order in one word; empty for
    anything else.
    """
    run = _RUN.fullmatch(text) is not None and list(text) == sorted(set(text))
    if not run and not _SEVERAL.fullmatch(text):
        return frozenset()
    letters = re.findall("[A-H]", text)
    return frozenset(letters) if len(set(letters)) == len(letters) else frozenset()
