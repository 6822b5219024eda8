r"""What a response says of its own answer: takes it back, corrects one box by another, marks it by
a tag.
"""

from __future__ import annotations

import re

from math_verify_rules.boxes import box_spans, boxed, boxes_differ, final_answer, has_box, tagged
from math_verify_rules.comparison import compare
from math_verify_rules.repair import close_groups

LAST_BOX, ANSWER_TAG, LATER_ANSWER = "last_box", "answer_tag", "later_answer"
NEAR = 160  # characters behind an answer in which it is taken back
_WRONG = (
    r"(?:wrong|incorrect|false|invalid|impossible|untrue|mistaken|erroneous|(?:an?|my|the) "
    r"(?:\w+ )?"
    r"(?:mistake|error|lie|trap)|not (?:the |my )?(?:\w+ "
    r")?(?:answer|right|correct|true|solution|valid|it))\b"
)
_TAKEN_BACK = re.compile(
    r"^(?:[^\w\n]|\\text|\\quad)*"
    r"(?:(?:(?:is|was|are|were|seems|looks|would be|would have been|cannot be|can't "
    rf"be)\s+(?:\w+\s+){{0,3}}?{_WRONG})|"
    r"(?:isn't|wasn't|is not|was not)\s+(?:the |my )?(?:\w+ "
    r")?(?:answer|right|correct|true|solution|valid)|"
    r"(?:wrong|incorrect|false)\b|"
    r"(?:no|wait|sorry|scratch that|correction|oops)\b(?!\s+(?:other|more|further|matter|need)))",
    re.IGNORECASE,
)
_LATER = re.compile(
    r"\b(?:that|this|it|which|answer|guess|result|value)\s+(?:is|was|would "
    r"be|seems|looks)\s+(?:\w+\s+){0,2}?" + _WRONG,
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\bnot|n't|\bcannot be|\bnever|\banything but|\bexcept|\brather than|\binstead "
    r"of|\bother than|"
    r"\bdifferent from|\bunlike|"
    r"\b(?:wrong|incorrect|false|bad)\s+(?:answer|result|guess|value|solution)(?:\s+\w+){0,3}|"
    r"\b(?:wrongly|incorrectly|falsely|mistakenly|possibly|perhaps|maybe)(?:\s+\w+){0,2}|不是|不等于)"
    r"(?:\s+(?:be|equal(?: to)?|the answer|simply|just))*[\s$:*(]*(?:\\\(|\\\[|\\text\{)?[\s$]*$",
    re.IGNORECASE,
)
_NOT_ONLY = re.compile(r"\b(?:why|whether or)\s+not\W*$", re.IGNORECASE)
_OTHER_ANSWER = re.compile(
    r"\b(?:answer|result|solution|value)\s+(?:is|should be|must "
    r"be|becomes)\s*:?\s*(?P<value>\S[^\n]*)|"
    r"\b(?:it|that)\s+(?:should be|must be|is actually|is really)\s+(?P<instead>\S[^\n]*)|"
    r"\bbut\s+(?P<but>[-\d$\\(][^\n]*)",
    re.IGNORECASE,
)
_CANDIDATES = re.compile(
    r"\b(?:n?or|and|either|also|maybe|perhaps|possibly|alternatively|otherwise|else|both|not|cannot|never|"
    r"options?|choices|candidates)\b|n't",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")


def takes_back(response: str) -> bool:
    r""" "\boxed{7} is wrong, the answer is 8", "the answer is not \boxed{7}": an answer that is
    denied beside it.
    """
    at = _place(response)
    if at is None:
        return False
    start, end, _answer = at
    before, behind = response[:start], response[end : end + NEAR]
    if _DENIED.search(before[-80:]) and not _NOT_ONLY.search(before[-80:]):
        return True
    return bool(_TAKEN_BACK.search(behind) or _LATER.search(behind))


def _later_answer(response: str) -> str:
    """Another value that a sentence after the last box states as the answer; empty without one."""
    at = _place(response)
    if at is None:
        return ""
    _start, end, answer = at
    for found in _OTHER_ANSWER.finditer(response[end : end + NEAR]):
        stated = re.split(
            r"(?<![\d])\.|\.(?!\d)|(?<!\\)[;!?]", found[found.lastgroup or 0], maxsplit=1
        )[0].strip(" *$")
        value = re.match(r"(?:\\?[\w(\[{$-])", stated) and re.search(
            r"\d|\\[a-z]+|^[A-Z]\b", stated
        )
        if (
            value
            and len(stated) < 60
            and compare(answer, stated) is None
            and not _begins_with(stated, answer)
        ):
            return stated
    return ""


def _begins_with(stated: str, answer: str) -> bool:
    return (
        stated.startswith(answer)
        and re.match(r"[\s.,]*[a-zA-Z]|$", stated[len(answer) :]) is not None
    )


def _place(response: str) -> tuple[int, int, str] | None:
    """Where the last box or the last <answer> begins and ends, and what is in it."""
    spans = box_spans(response)
    if spans:
        return spans[-1][0], spans[-1][2] + 1, final_answer(response)
    end = response.lower().rfind("</answer>")
    if has_box(response) or end < 0:
        return None
    return response.lower().rfind("<answer>"), end + len("</answer>"), final_answer(response)


def all_boxes(response: str) -> str:
    """The contents of all boxes, in order, as one list in one box."""
    return rf"\boxed{{{', '.join(reversed(list(boxed(response))))}}}"


def plain_response(response: str) -> tuple[str, str]:
    r"""A response as \boxed{its answer}, and why: LATER_ANSWER, ANSWER_TAG or LAST_BOX; itself and
    "" where none holds.

    Math-Verify knows no <answer>, reads a box before what is stated after it, and two boxes close
    together as a set. Words between them that do not offer both ("or", "and") say that the last one
    counts.
    """
    later = _later_answer(response)
    if later:
        return rf"\boxed{{{close_groups(later)}}}", LATER_ANSWER
    contents = tagged(response)
    if contents:
        answer = final_answer(response) if len(set(contents)) == 1 else ""
        return rf"\boxed{{{close_groups(answer)}}}", ANSWER_TAG
    if boxes_differ(response):
        spans = box_spans(response)
        between = response[spans[-2][2] : spans[-1][0]]
        if _WORD.search(between) and not _CANDIDATES.search(between):
            return rf"\boxed{{{next(boxed(response))}}}", LAST_BOX
    return response, ""
