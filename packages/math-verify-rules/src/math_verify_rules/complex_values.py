"""Complex constants: 2e^(i pi/3) is 1 + i sqrt 3, where i is the only letter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mpmath

from math_verify_rules.evaluation import DIGITS, TOLERANCE
from math_verify_rules.trees import Tree, variables

UNIT = "i"
MAX_EXPONENT = 200
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "exp": mpmath.exp, "abs": abs, "ln": mpmath.log,  # noqa: E501
}  # fmt: skip


def is_complex(*trees: Tree) -> bool:
    """Whether i is the only letter, in one of the trees at least."""
    return frozenset().union(*map(variables, trees)) == {UNIT}


def same_complex(one: Tree, other: Tree, point: Mapping[str, Any] | None = None) -> bool:
    """Whether two expressions are the same complex number at a point of their other letters, to 35
    digits.
    """
    with mpmath.workdps(DIGITS):
        try:
            a, b = (_value(tree, point or {}) for tree in (one, other))
        except (ValueError, ZeroDivisionError, OverflowError, TypeError, KeyError):
            return False
        return bool(mpmath.isfinite(a) and abs(a - b) <= TOLERANCE * max(abs(a), abs(b)))


def _value(tree: Tree, point: Mapping[str, Any]) -> Any:
    kind = tree[0]
    if kind == "num":
        return mpmath.mpf(tree[1].numerator) / tree[1].denominator
    if kind == "var":
        return mpmath.mpc(0, 1) if tree[1] == UNIT else point[tree[1]]
    if kind == "const":
        return {"pi": +mpmath.pi, "e": +mpmath.e}[tree[1]]
    values = [_value(part, point) for part in (tree[2:] if kind == "call" else tree[1:])]
    if kind == "call":
        return (
            mpmath.sqrt(values[0])
            if tree[1] == "root" and values[1] == 2
            else _FUNCTIONS[tree[1]](*values)
        )
    if kind == "neg":
        return -values[0]
    if kind == "deg":
        return values[0] * mpmath.pi / 180
    one, other = values
    if kind == "^":
        if abs(other) > MAX_EXPONENT:
            raise ValueError("too high a power")
        return mpmath.power(one, other)
    return {"+": lambda: one + other, "*": lambda: one * other, "/": lambda: one / other}[kind]()
