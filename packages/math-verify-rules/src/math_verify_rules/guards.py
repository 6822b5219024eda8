"""Answers that Math-Verify accepts and the full grader does not: they mention the gold without
stating it.

Each guard has a reason and a test; it speaks only where it is sure, and what it cannot read it lets
pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import mpmath

from math_verify_rules.boxes import boxes_differ, final_answer, has_a_box_inside, has_box
from math_verify_rules.changing import changes_it
from math_verify_rules.comparison import compare
from math_verify_rules.evaluation import DIGITS, number
from math_verify_rules.expressions import parse
from math_verify_rules.identity import constant
from math_verify_rules.leftovers import (
    THOUSANDS,
    adds_a_value,
    changes,
    has_a_modulus,
    has_an_index,
    hedges,
    hides,
    is_a_list,
    leaves_a_rest,
    lists_candidates,
    lists_lines,
)
from math_verify_rules.nodes import (
    Cases,
    Chain,
    Equation,
    Expression,
    Many,
    Node,
    Quantity,
    Region,
    letters,
)
from math_verify_rules.numerals import another_base
from math_verify_rules.precision import cut_off, digits_behind_the_point, near
from math_verify_rules.reading import read
from math_verify_rules.repair import repair
from math_verify_rules.rules import is_name, one_name, same
from math_verify_rules.scripts import has_chinese
from math_verify_rules.shape_guards import (
    asks,
    can_be_read,
    is_misshapen,
    is_prose,
    without_thousands,
)
from math_verify_rules.splitting import split
from math_verify_rules.trees import Tree, Unreadable
from math_verify_rules.units import other_units
from math_verify_rules.wording import conditions

ROUNDED = 0.005  # maximum difference of two sides of an equation if one is a decimal
FLOATS = 1e-12  # maximum error of a decimal printed by a computer
_NUMBERS = re.compile(r"(?:\\(?:frac|sqrt|pi)(?![a-z])|\\%|[-+*/^(){}\d.\se%°])+")
_NAMED = re.compile(r"(\\?[a-zA-Z](?:_\{?\w\}?)?)\s*=\s*([^=<>]+)")
_ESTIMATES = r"\\approx(?![a-z])|\\simeq(?![a-z])|\\doteq(?![a-z])"
_UNSEEN = re.compile(
    r"\\[hv]?phantom(?![a-z])|\\(?:text)?color\s*\{\s*white|(?<![\\\d\s])\s+%\s*\S"
)
_FACTOR = re.compile(r"[-*/\d]\s*\([^()]*=[^()]*\)|\([^()]*=[^()]*\)\s*[\^*/(\d]")  # (x = 1)^2
_COMMA_DECIMAL = re.compile(r"-?\d+,\d+")
_LONG_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_MARKS = re.compile(r"\\?%|°")
_TWO_NUMBERS = re.compile(r"[(\[,]\s*-?(?!\d{1,3}(?: \d{3})+\s*[)\],])\d+ +\d+\s*[)\],]")
MAX_MORE = 20  # characters that an answer has beyond the gold's


def is_gaming(golds: Sequence[str], response: str) -> bool:
    """Whether an answer that Math-Verify accepted for `golds`, the forms of one gold, is not an
    answer.
    """
    final, boxed = final_answer(response), has_box(response)
    answer, gold = repair(final), repair(golds[0])
    if boxed and not re.search(r"\w|\\emptyset|\\varnothing|^\\\{ ?\\\}$", answer):
        return True  # an empty box, the answer somewhere before it
    if not boxed and (is_a_list(gold, response) or lists_lines(response)):
        return True
    if asks(final if boxed else response) or hides(golds[0], final):
        return True
    rule = compare(golds[0], final)
    if has_a_box_inside(response) or _UNSEEN.search(
        final
    ):  # what Math-Verify reads, whatever is beside it
        return rule is None or "units_and_ordinals" in rule
    if not answer or answer == gold or rule is not None:
        return False
    whole = answer == repair(response) or (boxed and not boxes_differ(response))
    gold, answer = without_thousands(gold, answer)
    sides, estimated = split(answer, _ESTIMATES)
    if estimated and not changes_it(gold, answer):
        if any(compare(gold, side) is not None for side in sides):
            return False
        answer = sides[-1]
    return _mentions(gold, answer, boxed) or (whole and _differs(gold, answer, boxed))


def _mentions(gold: str, answer: str, boxed: bool) -> bool:
    """Whether an answer has the gold among other things."""
    return bool(
        is_a_list(gold, answer)
        or (
            _TWO_NUMBERS.search(answer) and not _TWO_NUMBERS.search(gold)
        )  # (4 0, 1): read as a product
        or (not boxed and lists_candidates(gold, answer))
        or says_something_else(*unnamed(gold, answer))
        or contradicts_itself(*unnamed(gold, answer))
        or is_no_equation(gold, answer)
        or is_not_that_decimal(gold, answer)
        or hedges(gold, answer)
        or has_an_index(gold, answer)
        or has_a_modulus(gold, answer)
    )


def _differs(gold: str, answer: str, boxed: bool) -> bool:
    """Whether an answer that is all there is of a response, or of its box, says another thing."""
    return (
        is_another_value(gold, answer)
        or names_another(gold, answer)
        or changes(gold, answer, boxed)
        or adds_a_value(gold, answer)
        or (not can_be_read(answer) and leaves_a_rest(gold, answer))
        or another_base(gold, answer)
        or other_units(gold, answer)
        or is_misshapen(gold, answer, boxed)
        or (boxed and (is_prose(gold, answer) or passes_another_value(gold, answer)))
        or (boxed and has_chinese(answer) and not has_chinese(gold))
    )


def unnamed(gold: str, answer: str) -> tuple[str, str]:
    """The gold without its "x =", for an answer that does not begin with it: its later parts may be
    steps.
    """
    name = _NAMED.fullmatch(gold)
    steps = name is None or re.match(rf"{re.escape(name[1])}\s*=", answer)
    return (gold, answer) if name is None or steps else (name[2], answer)


def is_no_equation(gold: str, answer: str) -> bool:
    """ "x > x = 5", "12 x = 5", "24, x = 5" and "(x = 5)^2" for x = 5."""
    if _FACTOR.search(answer) and not _FACTOR.search(gold):
        return True
    if not _NAMED.fullmatch(gold):
        return False
    if "=" in answer and re.search(r"[<>]|\\[gl]e(?![a-z])", answer):
        return True
    try:
        mine, theirs = read(gold), read(answer)
    except Unreadable:
        return False
    if isinstance(theirs, Many):
        return {type(item) for item in theirs.items} == {Equation, Expression} and isinstance(
            mine, Equation
        )
    strange = isinstance(theirs, Equation) and theirs.left_tree is not None and not is_name(theirs)
    return strange and same(mine, theirs) is None


def says_something_else(gold: str, answer: str) -> bool:
    """ "not 5" and "1 -> 5", in a short answer: a sentence may say "not 10 but 5"."""
    return len(answer) <= len(gold) + MAX_MORE and changes_it(gold, answer)


def is_another_value(gold: str, answer: str) -> bool:
    """ "x > 5", "5, 6" and 5 + x for 5, whether per cent signs and degrees count or not."""
    bare = [_MARKS.sub("", text) for text in (gold, answer)]
    return _differ(gold, answer) and (bare == [gold, answer] or _differ(*bare))


def _differ(gold: str, answer: str) -> bool:
    """Whether both can be read here as plain values or lists of them, not names or words, and are
    not equal.
    """
    gold, answer = (
        text.replace(" ", "") if THOUSANDS.fullmatch(text) else text for text in (gold, answer)
    )
    commas = any(
        _COMMA_DECIMAL.fullmatch(text) or THOUSANDS.fullmatch(text) for text in (gold, answer)
    )
    if commas and not _LONG_WORD.search(answer):
        return False
    try:
        mine = read(conditions(gold)[0])
    except Unreadable:
        return False
    mine = mine.value if isinstance(mine, Quantity) else mine
    try:
        theirs = read(conditions(answer)[0])
    except Unreadable:  # as "3 7.78" and "3 \\frac{41}{12}" are
        return isinstance(mine, Expression) and bool(_NUMBERS.fullmatch(THOUSANDS.sub("1", answer)))
    if (
        isinstance(theirs, Equation)
        and theirs.left_tree is not None
        and constant(theirs.left_tree) is not None
    ):
        theirs = theirs.right  # 1 = 1
    if (
        isinstance(mine, Expression)
        and isinstance(theirs, Equation)
        and theirs.left_tree is not None
    ):
        theirs = theirs.right
    if isinstance(theirs, Many) and any(
        isinstance(item, Equation) and item.left_tree is None for item in theirs.items
    ):
        return False  # "Soucis: 2,74"
    if isinstance(mine, Expression) and isinstance(theirs, Chain | Cases | Region | Many):
        return isinstance(theirs, Chain) or same(mine, theirs) is None
    if isinstance(mine, Chain) and isinstance(theirs, Chain):
        return len(letters(theirs)) > len(letters(mine))  # x < 0y
    return _is_plain(mine) and _is_plain(theirs) and same(mine, theirs) is None


def _is_plain(node: Node, nested: int = 0) -> bool:
    if isinstance(node, Expression) or (nested and isinstance(node, Quantity)):
        return True
    if (
        not isinstance(node, Many)
        or nested > 1
        or (nested and not node.left)
        or node.joined == "union"
    ):
        return False
    return all(_is_plain(item, nested + 1) for item in node.items)


def names_another(gold: str, answer: str) -> bool:
    """ "xn = 1, 2" for n = 1, 2: a value of a name that is not the one that the gold gives."""
    try:
        mine, theirs = read(conditions(gold)[0]), read(conditions(answer)[0])
    except Unreadable:
        return False
    asked, named = _names(mine), _names(theirs)
    unasked = any(not any(one_name(side, other) for other in asked) for side in named)
    return bool(asked) and unasked and same(mine, theirs) is None


def _names(node: Node) -> list[Equation]:
    """The equations in a node that give a name a value, without the name's index, in lower case."""
    if isinstance(node, Many):
        return [side for item in node.items for side in _names(item)]
    if not (isinstance(node, Equation) and is_name(node)):
        return []
    return [replace(node, left=node.left.partition("_")[0].lower())]


def contradicts_itself(gold: str, answer: str) -> bool:
    """ "1 = 2 = 5" for 5, and "2 = x+1" for x+1: sides that are different numbers."""
    sides, signs = split(answer, "=")
    if not signs or len(sides) > 12 or "=" in gold:
        return False
    if len(set(sides)) == 1:
        return True  # 0 = 0
    values = [_value(side) for side in sides]
    known = [value for value in values if value is not None]
    if known and values[0] is not None and values[-1] is None:
        return True
    return any(abs(value - known[-1]) > ROUNDED * abs(known[-1]) for value in known)


def passes_another_value(gold: str, answer: str) -> bool:
    """ "x = 125 = 3 km" for 3 km, "3:2 = 42" for 42: a side that can be read and is not equal to
    the last.

    A side with other letters than the gold's, "A = ab/2 = 7", is a step; unknown functions are
    names.
    """
    sides, signs = split(answer.replace(":=", "="), "=")
    if not signs or len(sides) > 12 or "=" in gold:
        return False
    name = letters(_read(sides[0]) or Many(()))
    known = letters(_read(gold) or Many(()))
    for at, side in enumerate(sides[:-1]):
        node = _read(side)
        if node is None or (at == 0 and name - known):
            continue
        if isinstance(node, Expression) and _calls_a_name(node.tree):
            continue
        if letters(node) <= known | name and not any(
            compare(text, side) for text in (gold, sides[-1])
        ):
            return not _close(side, sides[-1])
    return False


def _calls_a_name(tree: Tree) -> bool:
    """Whether f(2), whatever its value, is in a tree."""
    unknown = tree[0] == "call" and tree[1].startswith("?")
    return unknown or any(_calls_a_name(part) for part in tree[1:] if isinstance(part, tuple))


def _read(text: str) -> Node | None:
    try:
        return read(conditions(text)[0])
    except Unreadable:
        return None


def _close(one: str, other: str) -> bool:
    a, b = _value(one), _value(other)
    return a is not None and b is not None and bool(abs(a - b) <= ROUNDED * abs(b))


def is_not_that_decimal(gold: str, answer: str) -> bool:
    """0.5000004 for 1/2: Math-Verify compares six digits, but a decimal's digits tell which number
    it rounds.
    """
    digits = digits_behind_the_point(answer)
    if digits is None or digits_behind_the_point(gold) is not None:
        return False
    mine, theirs = _value(gold), _value(answer)
    if mine is None or theirs is None or "%" in gold or "°" in gold:
        return False
    with mpmath.workdps(DIGITS):
        printed = abs(mine - theirs) <= FLOATS * abs(mine)
        return not (printed or near(mine, theirs, digits) or cut_off(mine, theirs, digits))


def _value(text: str) -> mpmath.mpf | None:
    try:
        value = constant(parse(text))
    except Unreadable:
        return None
    with mpmath.workdps(DIGITS):
        return None if value is None else number(value)
