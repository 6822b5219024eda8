"""The rules that compare two answers. Each has a name, a reason and a test: README.md lists them.

A rule takes the gold's node and the answer's and says which rules made them equal (itself and those
it called on for what is inside), or None. A rule never guesses: what it does not know is not equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import mpmath

from math_verify_rules import matrices, regions
from math_verify_rules.evaluation import DIGITS, Undefined
from math_verify_rules.identity import identical
from math_verify_rules.lists import by_names, matched, mixed, without_repeats
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
    rename,
)
from math_verify_rules.precision import rounds
from math_verify_rules.ratios import ratios, remainders
from math_verify_rules.trees import Tree, contains

Used = frozenset[str]
RADIANS = frozenset(("rad", "radian"))
Rule = Callable[[Node, Node], Used | None]


def same(gold: Node, answer: Node) -> Used | None:
    """The names of the rules by which two answers are equal; None if they are not."""
    for rule in RULES:
        used = rule(gold, answer)
        if used is not None:
            return used
    return None


def numeric_identity(gold: Node, answer: Node) -> Used | None:
    """Two expressions with the same value at fixed random points: SymPy cannot simplify every
    equality.
    """
    if (
        isinstance(gold, Expression)
        and isinstance(answer, Expression)
        and identical(gold.tree, answer.tree)
    ):
        return frozenset(("numeric_identity",))
    return None


def degrees_radians(gold: Node, answer: Node) -> Used | None:
    """135 degrees is 3 pi/4, and 45 degrees is 45 if the other side has neither a unit nor pi."""
    if not (isinstance(gold, Expression) and isinstance(answer, Expression)):
        return None
    trees = (gold.tree, answer.tree)
    marked = [contains(tree, "deg") for tree in trees]
    if marked[0] == marked[1] or any(contains(tree, "pi") for tree in trees):
        return None
    bare = [tree[1] if tree[0] == "deg" else tree for tree in trees]
    return frozenset(("degrees_radians",)) if identical(*bare) else None


def decimals(gold: Node, answer: Node) -> Used | None:
    """A decimal and the number that it rounds: if the gold is 21.93, an answer may be 21 13/14."""
    if isinstance(gold, Expression) and isinstance(answer, Expression) and rounds(gold, answer):
        return frozenset(("decimals",))
    return None


def units_and_ordinals(gold: Node, answer: Node) -> Used | None:
    """ "84/13 days" for 84/13, "15th Day" for 15; two units must be equal, or one an abbreviation
    of the other.
    """
    if (
        isinstance(gold, Expression)
        and isinstance(answer, Expression)
        and answer.text.endswith("%")
    ):
        used = (
            same(gold, Expression(answer.tree[1], answer.text.rstrip("\\% ")))
            if answer.tree[0] == "pct"
            else None
        )
        return used and used | {"units_and_ordinals"}  # what per cent?
    if not (isinstance(gold, Quantity) or isinstance(answer, Quantity)):
        return None
    if any(
        isinstance(node, Equation) and isinstance(node.right, Quantity) for node in (gold, answer)
    ):
        return None  # its unit counts: dropped_left_side leads back here
    mine, theirs = (
        node.words if isinstance(node, Quantity) else frozenset[str]() for node in (gold, answer)
    )
    if mine and theirs and not (mine <= theirs or theirs <= mine):
        return None
    values = [node.value if isinstance(node, Quantity) else node for node in (gold, answer)]
    if len({value.tree[0] == "pct" for value in values if isinstance(value, Expression)}) == 2:
        return None  # per cent is a unit, too
    used = same(*values)
    if used is None or ("degrees_radians" in used and (mine | theirs) & RADIANS):
        return None  # 30 radians for 30 degrees
    return used | {"units_and_ordinals"}


def dropped_left_side(gold: Node, answer: Node) -> Used | None:
    """ "f(x) = 2x" for "2x": a name on the left adds nothing, unless the right side contains it."""
    sides = [node for node in (gold, answer) if isinstance(node, Equation)]
    if not sides or not all(_droppable(side) for side in sides):
        return None
    if len(sides) == 2 and not one_name(*sides):
        return None
    if any(
        isinstance(node, Chain) and (regions.lone(node) or " ")[0] == "call"
        for node in (gold, answer)
    ):
        return None  # D = (0, 1) is not 0 < f(x) < 1
    used = same(*(node.right if isinstance(node, Equation) else node for node in (gold, answer)))
    return None if used is None else used | {"dropped_left_side"}


def renamed_variables(gold: Node, answer: Node) -> Used | None:
    """f(z) = z is f(x) = x: the letter in a function's brackets is bound."""
    if not (isinstance(gold, Equation) and isinstance(answer, Equation)):
        return None
    gold, answer = _as_function(gold), _as_function(answer)
    if _function(gold.left_tree) is None:
        return None
    bound, other = (side.left_tree[2:] if side.left_tree else () for side in (gold, answer))
    if _function(gold.left_tree) != _function(answer.left_tree) or len(bound) != len(other):
        return None
    if any(each[0] != "var" for each in bound + other) or len(set(other)) != len(other):
        return None
    names = {old[1]: new[1] for old, new in zip(other, bound, strict=True)}
    if all(old == new for old, new in names.items()) or (
        set(names.values()) - set(names)
    ) & letters(answer.right):
        return None
    used = same(gold.right, rename(answer.right, names))
    return None if used is None else used | {"renamed_variables"}


def _as_function(side: Equation) -> Equation:
    """a_n = ... as a function of n, if n is on the right side, too."""
    match = re.fullmatch(r"([a-zA-Z])_\{?([a-z])\}?", side.left)
    if match is None or match[2] not in letters(side.right):
        return side
    return replace(side, left_tree=("call", f"?{match[1]}_", ("var", match[2])))


def _droppable(side: Equation) -> bool:
    """Whether the left side is only a name: x, x_1, f(x), (x, y), AB, a word; not 2x+z, not 7."""
    tree = side.left_tree
    if tree is None:
        if any(side.left.count(one) != side.left.count(other) for one, other in ("()", "[]")):
            return False
        return not any(letter in side.left for letter in "+-*/^0123456789=<>") or "," in side.left
    if tree[0] == "var":
        return tree[1] not in letters(side.right)
    return _function(tree) is not None or _product_of_letters(tree)


def is_name(side: Equation) -> bool:
    """Whether the left side is an expression that only names: x, x_1, f(x), AB."""
    return side.left_tree is not None and _droppable(side)


def _product_of_letters(tree: Tree) -> bool:
    return tree[0] == "var" or (
        tree[0] == "*" and all(_product_of_letters(part) for part in tree[1:])
    )


def _function(tree: Tree | None) -> str | None:
    """The name of the function whose value a left side is."""
    return tree[1] if tree is not None and tree[0] == "call" and tree[1].startswith("?") else None


def one_name(one: Equation, other: Equation) -> bool:
    """Whether two left sides name the same: the same text, or y and f(x)."""
    lefts = [re.sub(r"[(){}]", "", side.left) for side in (one, other)]
    if lefts[0] == lefts[1]:
        return True
    if any(re.fullmatch(rf"{re.escape(a)}_\w", b) for a, b in (lefts, lefts[::-1])):
        return True  # x_1 = 2, x_2 = 3 for x = 2, 3
    functions = [_function(side.left_tree) for side in (one, other)]
    if any(name == f"?{left}" for name, left in zip(functions, lefts[::-1], strict=True)):
        return True  # f = 0 for f(x) = 0
    names = {
        side.left if side.left == "y" else _function(side.left_tree) and "f"
        for side in (one, other)
    }
    return names == {"y", "f"}


def equations(gold: Node, answer: Node) -> Used | None:
    """x + y = 1 and y = 1 - x: the same difference of both sides, up to its sign; 0 = 0 does not
    count.
    """
    if not (isinstance(gold, Equation) and isinstance(answer, Equation)):
        return None
    differences: list[Tree] = []
    for side in (gold, answer):
        if side.left_tree is None or not isinstance(side.right, Expression):
            return None
        differences.append(("+", side.left_tree, ("neg", side.right.tree)))
    mine, theirs = differences
    if not letters(Expression(mine, "")) or identical(mine, ("*", ("num", Fraction(2)), mine)):
        return None
    return (
        frozenset(("equations",))
        if identical(mine, theirs) or identical(mine, ("neg", theirs))
        else None
    )


def lists(gold: Node, answer: Node) -> Used | None:
    """Lists item by item: a bare one or a set in any order, "a and b" as "a, b"; a tuple in
    order.
    """
    if isinstance(gold, Many) != isinstance(answer, Many):
        gold, answer = matrices.vector(gold), matrices.vector(answer)
    if not (isinstance(gold, Many) and isinstance(answer, Many)):
        single = {type(gold), type(answer)} - {Many}
        if Many in (type(gold), type(answer)) and single == {Expression}:
            return _single(gold, answer)
        return None
    gold, answer = matrices.alike(gold, answer)
    if gold.ordered == answer.ordered and not (by_names(gold) or by_names(answer)):
        gold, answer = without_repeats(gold), without_repeats(answer)
    if len(gold.items) != len(answer.items) or mixed(gold, answer):
        return None
    used = matched(gold, answer, same)
    return None if used is None else used | {"lists"}


def _single(gold: Node, answer: Node) -> Used | None:
    """{5} for 5."""
    both = [
        node.items[0]
        if isinstance(node, Many) and node.left == "{" and len(node.items) == 1
        else node
        for node in (gold, answer)
    ]
    if any(isinstance(node, Many) for node in both):
        return None
    used = same(*both)
    return None if used is None else used | {"lists"}


def intervals(gold: Node, answer: Node) -> Used | None:
    """An interval, an inequality, a set-builder, a union: the same set of real numbers, at points
    of the parameters.

    With cases in it, the rule is named "piecewise": the value or the set is the same in every case.
    """
    if not any(
        isinstance(node, (Chain, Region, Cases)) or regions.spoken(node) for node in (gold, answer)
    ):
        return None
    if any(isinstance(node, Equation) or regions.mixes(node) for node in (gold, answer)):
        return None  # dropped_left_side handles an equation's right side
    unknowns = {name for node in (gold, answer) for name in regions.unknowns(node)}
    named = [regions.named(node) for node in (gold, answer)]
    if all(named) and named[0] != named[1]:
        return None
    parameters = letters(gold) - unknowns
    if parameters != letters(answer) - unknowns:
        return None  # x <= 0y
    try:
        with mpmath.workdps(DIGITS):
            for point in regions.parameter_points(parameters):
                mine, theirs = regions.pieces(gold, point), regions.pieces(answer, point)
                if not regions.equal(mine, theirs) or not (mine or isinstance(gold, Region)):
                    return None  # (4, 1) is not an interval, and not equal to another invalid one
    except (Undefined, KeyError):
        return None
    return (
        frozenset(("piecewise",))
        if any(map(regions.has_cases, (gold, answer)))
        else frozenset(("intervals",))
    )


RULES: tuple[Rule, ...] = (
    numeric_identity,
    degrees_radians,
    decimals,
    units_and_ordinals,
    dropped_left_side,
    renamed_variables,
    equations,
    ratios,
    remainders,
    lists,
    intervals,
)
