"""Whether two expressions have the same value wherever both are defined, tested at fixed random
points.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import mpmath

from math_verify_rules.complex_values import UNIT, is_complex, same_complex
from math_verify_rules.evaluation import DIGITS, Undefined, Value, evaluate, number, same
from math_verify_rules.trees import Tree, variables

POINTS = 24  # number of test points
ENOUGH = 6  # required number of points inside both domains
MAX_VARIABLES = 12
_SEED = 20251002


@lru_cache(maxsize=1024)
def constant(tree: Tree) -> Value | None:
    """The value of an expression without variables; None if it is undefined."""
    if variables(tree):
        return None
    try:
        with mpmath.workdps(DIGITS):
            return evaluate(tree, {})
    except Undefined:
        return None


def identical(one: Tree, other: Tree) -> bool:
    """Whether two expressions are equal: exactly, to 35 digits, or at every point where both are
    defined.

    They must have the same variables, whatever cancels; and be defined together at ENOUGH points,
    no fewer than a quarter of those where either is. Points are positive, whole and of either sign
    by turns, so |x| is not x; all whole where there are factorials.
    """
    if one == other:
        return True
    names = variables(one)
    if is_complex(one, other):
        return same_complex(one, other)
    if names ^ variables(other) == {UNIT} and len(names) <= MAX_VARIABLES:
        shared = tuple(sorted(names - {UNIT}))  # (x+i)(x-i) for x^2+1
        return all(
            same_complex(one, other, _as_numbers(_point(shared, index, False)))
            for index in range(POINTS)
        )
    if names != variables(other) or len(names) > MAX_VARIABLES:
        return False
    with mpmath.workdps(DIGITS):
        if not names:
            a, b = constant(one), constant(other)
            return a is not None and b is not None and same(a, b)
        whole = any(_counts(tree) for tree in (one, other))
        both = either = 0
        for index in range(POINTS):
            point = _point(tuple(sorted(names)), index, whole)
            a, b = _at(one, point), _at(other, point)
            if a is not None and b is not None and not same(a, b):
                return False
            both += a is not None and b is not None
            either += a is not None or b is not None
        return both >= ENOUGH and 4 * both >= either


@lru_cache(maxsize=4096)
def _point(names: tuple[str, ...], index: int, whole: bool) -> dict[str, Value]:
    draw = random.Random(f"{_SEED} {index} {names}")
    kind = _whole if whole else _KINDS[index % len(_KINDS)]
    return {name: kind(draw) for name in names}


def _as_numbers(point: dict[str, Value]) -> dict[str, Value]:
    return {name: number(value) for name, value in point.items()}


def _counts(tree: Tree) -> bool:
    """Whether a tree has factorials or binomials, which are for integers only."""
    parts = [part for part in tree[1:] if isinstance(part, tuple)]
    return (tree[0] == "call" and tree[1] in ("factorial", "binom")) or any(map(_counts, parts))


def _whole(draw: random.Random) -> Value:
    return Fraction(draw.randint(1, 12))


def _positive(draw: random.Random) -> Value:
    return Fraction(draw.randint(1, 400), draw.randint(90, 110))


def _either_sign(draw: random.Random) -> Value:
    return Fraction(draw.choice((-1, 1)) * draw.randint(1, 300), draw.randint(90, 110))


_KINDS: tuple[Callable[[random.Random], Value], ...] = (_positive, _whole, _either_sign)


def _at(tree: Tree, point: dict[str, Value]) -> Value | None:
    try:
        return evaluate(tree, point)
    except (Undefined, KeyError):
        return None
