r"""Find the final answer of a response: the last \boxed{...}, or what the last line states."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_STATED = 300  # characters of an answer without a box
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"(?<!\\)[{}]")
_STATED = re.compile(r"(?:\banswer\s*(?:is|:|=)|^A:)\s*:?[\s*]*(.+)$", re.IGNORECASE)


def boxed(text: str) -> Iterator[str]:
    r"""The content of each closed \boxed{...} of a text, from the last to the first."""
    opened: list[int] = []
    ends: dict[int, int] = {}
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened:
            ends[opened.pop()] = brace.start()
    for box in reversed(list(_BOX.finditer(text))):
        if box.end() in ends:
            yield text[box.end() : ends[box.end()]].strip()


def has_box(response: str) -> bool:
    r"""Whether there is a \boxed, closed or not."""
    return _BOX.search(response) is not None


def boxes_differ(response: str) -> bool:
    """Whether several boxes have different contents: candidates, of which one may be right, or steps."""
    return has_box(response) and len({content.replace(" ", "") for content in boxed(response)}) > 1


def final_answer(response: str) -> str:
    r"""The text of the answer; empty if a response has no definite one.

    The last closed box counts and no other, so that a response cannot list candidates in boxes. Without a box it is
    what follows "answer is" or "A:" in the last line, else the whole of a response of one line.
    """
    if has_box(response):
        return next(boxed(response), "")
    lines = [line for line in (each.strip(" \t*") for each in response.splitlines()) if line]
    if not lines:
        return ""
    stated = _STATED.search(lines[-1])
    answer = stated[1] if stated else lines[-1] if len(lines) == 1 else ""
    return answer if len(answer) <= MAX_STATED else ""
