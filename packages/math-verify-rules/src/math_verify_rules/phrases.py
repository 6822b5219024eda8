"""Answers in words: "There are no solutions" is "no solution", "Yes, it is" is "yes", "The function
is odd" is "odd".

A phrase is compared by its words that carry meaning, in their order. Negations, quantifiers and
prepositions stay.
"""

from __future__ import annotations

import re

from math_verify_rules.dates import same_time

_LIGHT = frozenset(
    [
        "the",
        "a",
        "an",
        "is",
        "are",
        "was",
        "were",
        "be",
        "it",
        "there",
        "so",
        "thus",
        "hence",
        "therefore",
        "that",
        "this",
        "answer",
        "must",
        "will",
        "of",
        "real",
        "such",
        "exist",
    ]
)
_ALIKE = (  # a phrase as its words without the light ones, and what else says it
    ("no solution", "no root", "no such number", "no such integer", "empty set", "emptyset", "none", "none them",  # noqa: E501
     "no such n",
     "no such x", "do not have solution", "has no solution"),
    ("infinitely many", "infinite", "infinitely many solution", "infinite number solution", "infinitely many value"),  # noqa: E501
    ("does not exist", "dne", "not exist", "undefined"),
    ("prime", "prime number", "all prime", "all prime number", "every prime"),
    ("even integer", "even number", "all even integer", "all even number"),
    ("odd integer", "odd number", "all odd integer", "all odd number"),
    ("first player", "player 1", "player one", "first player win", "player 1 win"),
    ("second player", "player 2", "player two", "second player win", "player 2 win"),
    ("increasing", "monotonically increasing", "monotone increasing"),
    ("decreasing", "monotonically decreasing", "monotone decreasing"),
)  # fmt: skip
_VERDICT = re.compile(r'\s*"?(yes|no|true|false)\b"?(.*)$', re.IGNORECASE | re.DOTALL)
_OTHER_VERDICT = {
    "yes": r"\b(?:no|not|nor|or|false|never|cannot|but|\w+n't)\b",
    "true": r"\b(?:no|not|nor|or|false|never|cannot|but|\w+n't)\b",
    "no": r"\b(?:yes|or|true|but)\b",
    "false": r"\b(?:yes|or|true|but)\b",
}
_COPULA = re.compile(r"\s(?:is|are)\s")
_UNSURE = re.compile(
    r"\b(?:whether|if|not|no|neither|nor|or|never|which|what|unless|until|who|unclear|wrong|false|unknown|says?)\b"
)
MAX_SUBJECT, MAX_WORDS = 8, 12


def same_phrase(gold: str, answer: str) -> bool:
    """Whether two repaired answers say the same in words."""
    time = same_time(gold, answer)
    if time is not None:
        return time
    mine, theirs = _verdict(gold), _verdict(answer)
    if mine or theirs:
        return mine == theirs and "" in (_rest(gold), _rest(answer))
    texts = [_phrase(text) for text in (gold, answer)]
    if all(texts) and texts[0] == texts[1]:
        return True
    return any(
        one and one == _phrase(predicate(other))
        for one, other in zip(texts, (answer, gold), strict=True)
    )


def predicate(text: str) -> str:
    """The words after "is" or "are" of a short sentence; empty for anything else, or where the
    subject is unsure.
    """
    pieces = _COPULA.split(text.strip(" ."))
    if (
        len(pieces) != 2
        or len(pieces[0].split()) > MAX_SUBJECT
        or _UNSURE.search(pieces[0].lower())
    ):
        return ""
    return pieces[1]


def _phrase(text: str) -> str:
    """The words that carry meaning, in lower case and singular; empty if there are none, or
    anything but words.
    """
    plain = (
        re.sub(r"\\(?:emptyset|varnothing)(?![a-z])|^\s*\\\{\s*\\\}\s*$", " empty set ", text)
        .replace('"', " ")
        .lower()
    )
    if not re.fullmatch(r"[a-z0-9\s.,;:!?'()-]*", plain):
        return ""
    words = [
        word
        for word in re.findall(r"[a-z]+(?:'[a-z]+)?|-?[0-9.]*[0-9]|[(-]", plain)
        if word not in _LIGHT
    ]
    if not any(len(word) > 2 and word.isalpha() for word in words) or len(words) > MAX_WORDS:
        return ""
    said = _said(words)
    return _CANONICAL.get(said, said)


def _said(words: list[str]) -> str:
    """Words in the singular."""
    return " ".join(
        word[:-1] if len(word) > 3 and re.search("[^suia]s$", word) else word for word in words
    )


_CANONICAL = {_said(phrase.split()): group[0] for group in _ALIKE for phrase in group}


def _verdict(text: str) -> str:
    """The word of a yes, no, true or false at the beginning, where nothing after it takes
    it back.
    """
    match = _VERDICT.match(text)
    if match is None:
        return ""
    word = match[1].lower()
    begun = not match[2].strip(' ."') or re.fullmatch(r'"?[,.;:][a-zA-Z\s,.;:\'"-]*', match[2])
    return word if begun and not re.search(_OTHER_VERDICT[word], match[2].lower()) else ""


def _rest(text: str) -> str:
    match = _VERDICT.match(text)
    return match[2].strip(' .,;"') if match else text
