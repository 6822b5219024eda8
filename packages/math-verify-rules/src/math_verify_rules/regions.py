"""Sets of real numbers: a common form of intervals, inequalities and set-builders, at a point of
their parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

from math_verify_rules.evaluation import Undefined, Value, evaluate, number, same
from math_verify_rules.nodes import Cases, Chain, Equation, Expression, Many, Node, Region, children
from math_verify_rules.trees import Tree, variables

INFINITE = {("const", "infty"): 1, ("neg", ("const", "infty")): -1}
_HOLDS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": same,
}
# whole numbers and halves up to 10, where cases change, a number beside each, and large ones
_STEPS = (
    *(Fraction(n, 2) for n in range(-20, 21)),
    *(Fraction(7 * n + 2, 7) for n in range(-11, 11)),
    *map(Fraction, (-997, -103, -31, 29, 101, 1009)),
)
Point = Mapping[str, Value]


@dataclass(frozen=True)
class Bound:
    """An end of an interval: infinite (-1 or 1), or a value, just below it (-1), at it (0), or just
    above (1).
    """

    infinite: int
    value: Value
    beside: int


Piece = tuple[
    Bound, Bound
]  # from, to: both inclusive, since a Bound includes its side of the value
_LOWEST, _HIGHEST = Bound(-1, 0, 0), Bound(1, 0, 0)
ALL = ((_LOWEST, _HIGHEST),)


def pieces(node: Node, point: Point) -> tuple[Piece, ...]:
    """The intervals of a node, in order, joined if they touch. Raises: Undefined."""
    if isinstance(node, Region):
        found = ALL if node.inside is None else pieces(node.inside, point)
        return (
            found
            if node.except_ is None
            else _both(found, _complement(pieces(node.except_, point)))
        )
    if isinstance(node, Chain):
        return _chain(node, point)
    if isinstance(node, Cases):
        return pieces(_branch(node, point), point)
    if isinstance(node, Equation):
        return pieces(node.right, point)
    if isinstance(node, Expression):
        return (_single(evaluate(node.tree, point)),)
    if isinstance(node, Many):
        return _many(node, point)
    raise Undefined("no set of numbers")


def _many(node: Many, point: Point) -> tuple[Piece, ...]:
    if node.left in ("(", "[") and len(node.items) == 2:
        low, high = (_end(item, point) for item in node.items)
        opened = Bound(low.infinite, low.value, 1 if node.left == "(" else 0)
        closed = Bound(high.infinite, high.value, -1 if node.right == ")" else 0)
        return _joined([(opened, closed)])
    if node.left not in ("", "{"):
        raise Undefined("no set of numbers")
    parts = [pieces(item, point) for item in node.items]
    if node.items and node.joined in ("and", ",") and all(map(_is_condition, node.items)):
        common: tuple[Piece, ...] = ALL
        for part in parts:
            common = _both(common, part)
        if common or node.joined == "and":
            return common
    return _joined([piece for part in parts for piece in part])


def _is_condition(node: Node) -> bool:
    r"""An inequality, or "x \in S"."""
    return isinstance(node, Chain) or (isinstance(node, Region) and bool(node.variable))


def holds(chain: Chain, point: Point) -> bool:
    """Whether inequalities hold at a point that has all their variables."""
    values = [evaluate(part, point) for part in chain.parts]
    return all(_HOLDS[sign](values[n], values[n + 1]) for n, sign in enumerate(chain.signs))


def _branch(node: Cases, point: Point) -> Node:
    for value, when in node.branches:
        if not isinstance(when, Chain) or holds(when, point):
            return value
    raise Undefined("no case")


def _chain(node: Chain, point: Point) -> tuple[Piece, ...]:
    """x > a, a < x, a < x < b, x != a: the part that is a single variable is the unknown."""
    unknown = lone(node)
    if unknown is None:
        raise Undefined("no unknown by itself")
    found: tuple[Piece, ...] = ALL
    for n, sign in enumerate(node.signs):
        left, right = node.parts[n], node.parts[n + 1]
        if unknown not in (left, right):
            raise Undefined("no unknown by itself")
        bound = _tree_end(right if left == unknown else left, point)
        if sign == "!=":
            return _complement((_single(bound.value),))
        less = (sign in ("<", "<=")) == (left == unknown)
        at = 0 if sign in ("<=", ">=") else -1 if less else 1
        end = Bound(bound.infinite, bound.value, at)
        found = _both(found, _joined([(_LOWEST, end) if less else (end, _HIGHEST)]))
    return found


def lone(node: Chain) -> Tree | None:
    """The unknown of inequalities: the one part that is a variable by itself (x, x_1, f(x)), in the
    middle of three.
    """
    parts = node.parts[1:2] if len(node.parts) == 3 else node.parts
    alone = [
        part for part in parts if part[0] == "var" or (part[:1] == ("call",) and _unknown(part))
    ]
    return alone[0] if alone else None


def _unknown(call: Tree) -> bool:
    """f(x); f(2) is an unknown number."""
    return bool(call[1].startswith("?") and variables(call))


def _end(node: Node, point: Point) -> Bound:
    if not isinstance(node, Expression):
        raise Undefined("no end of an interval")
    return _tree_end(node.tree, point)


def _tree_end(tree: Tree, point: Point) -> Bound:
    return Bound(INFINITE[tree], 0, 0) if tree in INFINITE else Bound(0, evaluate(tree, point), 0)


def _single(value: Value) -> Piece:
    return Bound(0, value, 0), Bound(0, value, 0)


def _compare(one: Bound, other: Bound) -> int:
    if one.infinite or other.infinite:
        return one.infinite - other.infinite
    if same(one.value, other.value):
        return one.beside - other.beside
    return -1 if number(one.value) < number(other.value) else 1


def _by_start(one: Piece, other: Piece) -> int:
    return _compare(one[0], other[0])


def _joined(unordered: list[Piece]) -> tuple[Piece, ...]:
    """The intervals in order, without empty ones, and with overlapping or touching ones joined."""
    kept: list[Piece] = []
    for low, high in sorted(
        (piece for piece in unordered if _compare(*piece) <= 0), key=cmp_to_key(_by_start)
    ):
        if kept and _compare(low, _after(kept[-1][1])) <= 0:
            last = kept.pop()
            low, high = last[0], high if _compare(high, last[1]) > 0 else last[1]
        kept.append((low, high))
    return tuple(kept)


def _after(bound: Bound) -> Bound:
    return bound if bound.infinite or bound.beside == 1 else Bound(0, bound.value, bound.beside + 1)


def _before(bound: Bound) -> Bound:
    return (
        bound if bound.infinite or bound.beside == -1 else Bound(0, bound.value, bound.beside - 1)
    )


def _both(one: tuple[Piece, ...], other: tuple[Piece, ...]) -> tuple[Piece, ...]:
    overlaps = []
    for a in one:
        for b in other:
            low = a[0] if _compare(a[0], b[0]) >= 0 else b[0]
            high = a[1] if _compare(a[1], b[1]) <= 0 else b[1]
            overlaps.append((low, high))
    return _joined(overlaps)


def _complement(covered: tuple[Piece, ...]) -> tuple[Piece, ...]:
    rest: list[Piece] = []
    low = _LOWEST
    for piece in covered:
        if piece[0].infinite != -1:
            rest.append((low, _before(piece[0])))
        if piece[1].infinite == 1:
            return _joined(rest)
        low = _after(piece[1])
    return _joined([*rest, (low, _HIGHEST)])


def equal(one: tuple[Piece, ...], other: tuple[Piece, ...]) -> bool:
    """Whether two sets are the same."""
    return len(one) == len(other) and all(
        _compare(a, b) == 0
        for mine, theirs in zip(one, other, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


def parameter_points(names: frozenset[str]) -> list[dict[str, Any]]:
    """Points of the parameters, of both signs and around small numbers; a single point without
    parameters.
    """
    if not names:
        return [{}]
    order = sorted(names)
    count = len(_STEPS)
    return [
        {name: _STEPS[(n * (at + 1) + 3 * at) % count] for at, name in enumerate(order)}
        for n in range(count)
    ]


def has_cases(node: Node) -> bool:
    return isinstance(node, Cases) or any(map(has_cases, children(node)))


def spoken(node: Node) -> bool:
    """A union, or alternatives of which one is an inequality or an interval."""
    return isinstance(node, Many) and (
        node.joined == "union" or any(isinstance(item, (Chain, Region)) for item in node.items)
    )


def mixes(node: Node) -> bool:
    """ "x > 5 or 26", a condition or interval and a number beside it; the union of two numbers."""
    if not isinstance(node, Many):
        return False
    kinds = {type(item) for item in node.items}
    return Expression in kinds and (len(kinds) > 1 or node.joined == "union")


def unknowns(node: Node) -> set[str]:
    """The letters that inequalities and set-builders below a node are about."""
    below = [value for value, _when in node.branches] if isinstance(node, Cases) else children(node)
    names = {name for child in below for name in unknowns(child)}
    if isinstance(node, Chain) and (tree := lone(node)) is not None:
        names |= variables(tree)
    return names | ({node.variable} if isinstance(node, Region) and node.variable else set())


def named(node: Node) -> set[str]:
    """The letters that an answer names as unknowns; a set-builder's letter is bound and does not
    count.
    """
    if isinstance(node, Chain):
        return unknowns(node)
    if isinstance(node, Many) and node.left == "":
        return {name for item in node.items for name in named(item)}
    return set()
