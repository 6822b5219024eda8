"""Guards on the shape of an answer: what Math-Verify reads past, such as a broken left side or text
before a tuple.

They hold for golds whose shape can be read here, and let pass what has words in it, except a box
full of prose.
"""

from __future__ import annotations

import re

from math_verify_rules.identity import identical
from math_verify_rules.nodes import Chain, Equation, Expression, Many, Region
from math_verify_rules.reading import read
from math_verify_rules.regions import has_cases
from math_verify_rules.rules import same
from math_verify_rules.splitting import split
from math_verify_rules.trees import Unreadable, variables
from math_verify_rules.wording import conditions

PROSE = 15  # words in a box that are no answer to a gold without as many
_LETTER = r"\\?[a-zA-Z]+(?:_(?:\{\w+\}|\w))?'*"
_NAME = re.compile(rf"{_LETTER}(?:\({_LETTER}(?:,{_LETTER})*\))?")
_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_BIG = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_NEGATED = re.compile(r"\\(?:ne|neq|not)(?![a-z])")
_MATRIX = re.compile(
    r"\\begin\s*\{([pbBvV]?matrix|smallmatrix|array)\}(?:(?!\\begin).)*?\\end\s*\{\1\}", re.DOTALL
)
_BOUNDS = re.compile(r"\\(?:begin|end)\s*\{\w+\}(?:\{[lcr| ]*\})?|\\phantom\s*\{?-\}?|\\[a-z]?frac")
_OPTION_LAST = re.compile(r"(?:^|\n)\s*\(?(\d{1,2})\)[^\d\n]*$")
_ENUMERATED = re.compile(r"(?:^|\n)\s*\(?\d{1,2}\)")


def is_misshapen(gold: str, answer: str, boxed: bool) -> bool:
    """Whether a repaired answer, the whole of what a response states, cannot be meant as this
    repaired gold.
    """
    if gold.strip('" ').isalpha() and not _balanced(answer):
        return True  # Ev(en
    return (
        misnames(gold, answer)
        or is_no_tuple(gold, answer)
        or (
            (boxed or not _WORDS.search(_MATRIX.sub("", answer)))
            and is_another_matrix(gold, answer)
        )
        or is_another_case(gold, answer)
        or is_another_bound(gold, answer)
    )


def without_thousands(gold: str, answer: str) -> tuple[str, str]:
    """6,600 as 6600 in both: a guard would read two numbers."""
    if not _BIG.fullmatch(gold):
        return gold, answer
    plain = gold.replace(",", "")
    return plain, answer.replace(gold, plain)


def is_prose(gold: str, answer: str) -> bool:
    """A box that holds a question or an essay: Math-Verify reads the last number in it."""
    return len(_WORDS.findall(answer)) > PROSE + 2 * len(_WORDS.findall(gold))


def asks(response: str) -> bool:
    """A response without a box that ends in a question, or in an enumerated option whose number is
    read.
    """
    if response.rstrip().endswith("?"):
        return True
    return (
        len(_ENUMERATED.findall(response)) > 2
        and _OPTION_LAST.search(response.rstrip()) is not None
    )


def misnames(gold: str, answer: str) -> bool:
    """ "f)x^)=1", "16, f(x) = 1" and "(f(x)=1)/26" for f(x) = 1; "x = 5 = z = 2" for x = y
    = z = 2.
    """
    asked = [_plain(side) for side in split(gold, "=")[0][:-1]]
    if not asked or not all(map(_NAME.fullmatch, asked)) or "=" not in answer:
        return False
    if not _balanced(answer) or (_NEGATED.search(answer) and not _NEGATED.search(gold)):
        return True
    if _has_words(answer) or (len(asked) > 1 and "," in answer):
        return False
    named = [_plain(side) for side in split(answer, "=")[0][:-1]]
    if len(asked) > 1:
        return set(named) != set(asked)
    if not (named and _NAME.fullmatch(named[0])):
        return not _same(gold, answer)
    if not all(map(_NAME.fullmatch, named)):
        return False  # steps
    return _another_right_side(gold, f"{named[0]}={split(answer, '=')[0][-1]}")


def _another_right_side(gold: str, answer: str) -> bool:
    """ "f(x) = 1 + x" and "x = f(x) = 1y" for f(x) = 1."""
    try:
        mine, theirs = read(conditions(gold)[0]), read(conditions(answer)[0])
    except Unreadable:
        return False
    sides = [node.right for node in (mine, theirs) if isinstance(node, Equation)]
    return (
        len(sides) == 2
        and all(isinstance(side, Expression) for side in sides)
        and same(*sides) is None
    )


def is_no_tuple(gold: str, answer: str) -> bool:
    """ "x > (1, 2)", "(1, 2)^2", "4(1, 2)" and "(1, 2)) " for (1, 2)."""
    try:
        mine = read(conditions(gold)[0])
    except Unreadable:
        return False
    if not isinstance(mine, Many) or mine.left != "(" or mine.right != ")" or _has_words(answer):
        return False
    if not re.search(r"[()]", answer):
        return False  # the bare values
    if not all(isinstance(item, Expression) for item in mine.items):
        return False
    try:
        theirs = read(conditions(answer)[0])
    except Unreadable:
        return True
    return not isinstance(theirs, Many | Equation | Region | Chain)


def is_another_matrix(gold: str, answer: str) -> bool:
    """Another entry of a matrix; anything around it: "2A", "A, 5", "A or B"; any answer that is no
    matrix or vector.

    Where the gold cannot be read, its answer must be one matrix with the same digits in the same
    order.
    """
    if len(_MATRIX.findall(gold)) != 1 or _around(gold):
        return False
    try:
        mine = read(gold)
    except Unreadable:
        one = len(_MATRIX.findall(answer)) == 1 and not _around(answer)
        return not one or _digits(answer) != _digits(gold)
    try:
        theirs = read(answer)
    except Unreadable:
        return (
            len(_MATRIX.findall(answer)) != 1
            or bool(_around(answer))
            or _digits(answer) != _digits(gold)
        )
    return same(mine, theirs) is None


def _around(text: str) -> str:
    """What is written beside the matrices in a text, without the name of one."""
    return re.sub(rf"^{_LETTER}=|[\s()$.]", "", re.sub(r"\s", "", _MATRIX.sub("", text)))


def _digits(text: str) -> list[str]:
    return re.findall(r"[-a-z\d]", _BOUNDS.sub("", text))


def is_another_case(gold: str, answer: str) -> bool:
    """Cases with another value or another condition."""
    try:
        mine, theirs = read(conditions(gold)[0]), read(conditions(answer)[0])
    except Unreadable:
        return False
    return has_cases(mine) and has_cases(theirs) and same(mine, theirs) is None


def is_another_bound(gold: str, answer: str) -> bool:
    r"""3^x \ge x for 3^x \ge x^2: the same left side and sign, an expression with other values on
    the right.
    """
    mine, theirs = _bounds(gold), _bounds(answer)
    return len(mine) == len(theirs) and any(
        one.signs == other.signs
        and identical(one.parts[0], other.parts[0])
        and bool(variables(one.parts[1]))
        and not identical(one.parts[1], other.parts[1])
        for one, other in zip(mine, theirs, strict=True)
    )


def _bounds(text: str) -> list[Chain]:
    """The inequalities of two sides in a text."""
    try:
        node = read(conditions(re.sub(r"\\forall(?![a-z])|∀", "", text))[0])
    except Unreadable:
        return []
    items = node.items if isinstance(node, Many) else (node,)
    return [item for item in items if isinstance(item, Chain) and len(item.parts) == 2]


def _same(gold: str, answer: str) -> bool:
    try:
        return same(read(conditions(gold)[0]), read(conditions(answer)[0])) is not None
    except Unreadable:
        return False


def _plain(text: str) -> str:
    return re.sub(r"\s|\\forall", "", text)


def _balanced(text: str) -> bool:
    return sum(map(text.count, "([")) == sum(map(text.count, ")]"))


def _has_words(text: str) -> bool:
    return bool(re.search(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}", text))


def can_be_read(answer: str) -> bool:
    """Whether a repaired answer can be read here."""
    try:
        return read(conditions(answer)[0]) is not None
    except Unreadable:
        return False
