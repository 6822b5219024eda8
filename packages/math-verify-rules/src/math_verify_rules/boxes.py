r"""Find the final answer of a response: the last \boxed{...}, an <answer>, or what the last line
states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_STATED = 300  # characters of an answer without a box
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"(?<!\\)[{}]")
_STATED = re.compile(
    r"(?:\banswer\s*(?:is|:|=)|^A:|答案\s*(?:是|为|\uff1a|:|=))\s*[:\uff1a]?[\s*]*(.+)$",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"[\s$.{}]")
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.IGNORECASE | re.DOTALL)


def box_spans(text: str) -> list[tuple[int, int, int]]:
    r"""Where each closed \boxed{...} that is in no other begins, its content begins, and
    that ends.
    """
    opened: list[int] = []
    ends: dict[int, int] = {}
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened:
            ends[opened.pop()] = brace.start()
    outer: list[tuple[int, int, int]] = []
    for box in BOX.finditer(text):
        if box.end() in ends and (not outer or box.start() > outer[-1][2]):
            outer.append((box.start(), box.end(), ends[box.end()]))
    return outer


def boxed(text: str) -> Iterator[str]:
    r"""The content of each closed \boxed{...} in no other, from the last to the first; boxes in it
    are braces.
    """
    for _start, begin, end in reversed(box_spans(text)):
        yield without_braces(BOX.sub("{", text[begin:end]))


def without_braces(text: str) -> str:
    """A text without braces that enclose all of it."""
    text = text.strip()
    depth = 0
    for brace in _BRACE.finditer(text if text.startswith("{") else ""):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return without_braces(text[1:-1]) if brace.end() == len(text) else text
    return text


def has_box(response: str) -> bool:
    r"""Whether there is a \boxed, closed or not."""
    return BOX.search(response) is not None


def has_a_box_inside(response: str) -> bool:
    """Whether the last box has another one in it, with something beside."""
    spans = box_spans(response)
    if not spans:
        return False
    content = response[spans[-1][1] : spans[-1][2]]
    return any(
        _NOTHING.sub("", content[:start] + content[end + 1 :])
        for start, _begin, end in box_spans(content)
    )


def boxes_differ(response: str) -> bool:
    """Whether several boxes have different contents: candidates, of which one may be right, or
    steps.
    """
    return has_box(response) and len({content.replace(" ", "") for content in boxed(response)}) > 1


def tagged(response: str) -> list[str]:
    """What is in each <answer>...</answer> of a response without a box."""
    return [] if has_box(response) else [content.strip() for content in _TAG.findall(response)]


def final_answer(response: str) -> str:
    r"""The text of the answer; empty if a response has no definite one.

    The last closed box counts and no other, so that a response cannot list candidates in boxes.
    Without a box it is what follows "answer is" or "A:" in the last line, else the whole of a
    response of one line; of the last <answer>, if there is one.
    """
    if has_box(response):
        return next(boxed(response), "")
    for content in tagged(response)[-1:]:
        response = content
    lines = [line for line in (each.strip(" \t*`") for each in response.splitlines()) if line]
    if not lines:
        return ""
    stated = _STATED.search(lines[-1])
    answer = stated[1] if stated else lines[-1] if len(lines) == 1 else ""
    return answer if len(answer) <= MAX_STATED else ""
