"""Split a text at separators outside all brackets."""

from __future__ import annotations

import re
from functools import lru_cache

_BRACKETS = r"\\\{|\\\}|[(\[{)\]}]|\\begin(?![a-z])|\\end(?![a-z])"
_OPENING = ("\\{", "(", "[", "{", "\\begin")


@lru_cache(maxsize=64)
def _pattern(separator: str) -> re.Pattern[str]:
    return re.compile(f"(?P<bracket>{_BRACKETS})|(?P<separator>{separator})")


def split(text: str, separator: str) -> tuple[list[str], list[str]]:
    """The pieces of `text` between top-level matches of a regular expression, and those matches."""
    pieces, separators, depth, start = [], [], 0, 0
    for match in _pattern(separator).finditer(text):
        if match["bracket"]:
            depth += 1 if match["bracket"] in _OPENING else -1
        elif depth == 0:
            pieces.append(text[start : match.start()].strip())
            separators.append(match["separator"].strip())
            start = match.end()
    return [*pieces, text[start:].strip()], separators


def enclosed(text: str, left: str, right: str) -> bool:
    """Whether the text's first bracket is closed by its last one, of any shape."""
    if not (text.startswith(left) and text.endswith(right) and len(text) >= len(left) + len(right)):
        return False
    depth = 0
    for match in _pattern("(?!)").finditer(text):
        depth += 1 if match[0] in _OPENING else -1
        if depth == 0:
            return match.end() == len(text)
    return False
