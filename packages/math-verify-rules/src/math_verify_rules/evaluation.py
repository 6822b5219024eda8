"""The value of a tree at a point: exact if it is rational, else real with 50 digits; never complex
or unbounded.

A value that is not real, not finite, too large to be exact, or lost between numbers of very
different size is
`Undefined`: the point is outside the domain, and a constant that has no value equals nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath

from math_verify_rules.trees import Tree

Value = Any  # Fraction or mpmath.mpf
DIGITS = 50
TOLERANCE = mpmath.mpf(10) ** -35
MAX_BITS = 20_000  # of a rational number
MAX_FACTORIAL = 1_000
SPREAD = 110  # powers of two between two numbers whose sum still depends on both


class Undefined(ValueError):
    """There is no real, finite value."""


def evaluate(tree: Tree, point: Mapping[str, Value]) -> Value:
    """The value of `tree` with its variables at `point`. Raises: Undefined; KeyError for a variable
    without value.
    """
    kind = tree[0]
    if kind == "num":
        return tree[1]
    if kind == "var":
        return point[tree[1]]
    if kind == "const":
        return _constant(tree[1])
    values = [evaluate(part, point) for part in (tree[2:] if kind == "call" else tree[1:])]
    try:
        return _checked(_call(tree[1], values) if kind == "call" else _operation(kind, values))
    except (ZeroDivisionError, OverflowError, TypeError, ArithmeticError) as error:
        raise Undefined(kind) from error


def same(one: Value, other: Value) -> bool:
    """Whether two values are equal within their precision."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    a, b = number(one), number(other)
    return bool(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)))


def number(value: Value) -> Any:
    """A value as mpmath's number."""
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _constant(name: str) -> Value:
    if name == "infty":
        raise Undefined(name)
    return +mpmath.pi if name == "pi" else +mpmath.e


def _checked(value: Value) -> Value:
    if isinstance(value, Fraction):
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
            raise Undefined("too long a number")
        return value
    if not isinstance(value, mpmath.mpf) or not mpmath.isfinite(value):
        raise Undefined("not real")
    return value


def _operation(kind: str, values: list[Value]) -> Value:
    if kind == "neg":
        return -values[0]
    if kind == "deg":
        return number(values[0]) * mpmath.pi / 180
    if kind == "pct":
        return values[0] / 100
    one, other = values
    if kind == "^":
        return _power(one, other)
    if not (isinstance(one, Fraction) and isinstance(other, Fraction)):
        one, other = number(one), number(other)
    if kind == "+":
        return _sum(one, other)
    return one * other if kind == "*" else one / other


def _sum(one: Value, other: Value) -> Value:
    total = one + other
    if not isinstance(total, Fraction) and one and other:
        if abs(mpmath.mag(one) - mpmath.mag(other)) > SPREAD:
            raise Undefined("one is lost beside the other")
        if mpmath.mag(total) < max(mpmath.mag(one), mpmath.mag(other)) - SPREAD:
            return mpmath.mpf(0)  # the remainder is rounding error
    return total


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = (
            base.numerator.bit_length() + base.denominator.bit_length()
            if isinstance(base, Fraction)
            else 1
        )
        if abs(exponent) * bits > MAX_BITS:
            raise Undefined("too high a power")
        return base ** int(exponent)
    if isinstance(exponent, Fraction) and base < 0 and exponent.denominator % 2:
        root = _root(base, exponent.denominator)  # of an odd degree: real
        return _power(root, Fraction(exponent.numerator))
    if base < 0 or abs(exponent) > 1_000:
        raise Undefined("not real")
    exact = _root(base, exponent.denominator) if isinstance(exponent, Fraction) else None
    if isinstance(exact, Fraction):
        return _power(exact, Fraction(exponent.numerator))
    return mpmath.power(number(base), number(exponent))


def _root(value: Value, degree: int) -> Value:
    """The real root; exact if it is rational."""
    if degree < 1 or degree > 100 or (value < 0 and degree % 2 == 0):
        raise Undefined("not real")
    if value < 0:
        return -_root(-value, degree)
    if isinstance(value, Fraction):
        parts = [_whole_root(part, degree) for part in (value.numerator, value.denominator)]
        if None not in parts:
            return Fraction(*parts)  # type: ignore[arg-type]
    return mpmath.root(number(value), degree)


def _whole_root(value: int, degree: int) -> int | None:
    if value.bit_length() > 400:
        return None
    near = int(mpmath.nint(mpmath.root(value, degree)))
    return near if near**degree == value else None


def _call(name: str, values: list[Value]) -> Value:
    if name in ("min", "max"):
        return (min if name == "min" else max)(values, key=number)
    if name == "abs":
        return abs(values[0])
    if name in ("floor", "ceil"):
        return Fraction(
            getattr(math, name)(values[0])
            if isinstance(values[0], Fraction)
            else _round(name, values[0])
        )
    if name in ("root", "sqrt"):
        degree = values[1] if len(values) > 1 else Fraction(2)
        if not isinstance(degree, Fraction) or degree.denominator != 1:
            raise Undefined("a root of a degree that is no whole number")
        return _root(values[0], int(degree))
    if name in ("factorial", "binom", "gcd", "lcm"):
        return _of_whole_numbers(name, values)
    if name.startswith("?"):
        return _unknown(name, values)
    if name in ("log", "lg") and len(values) == 1:
        values = [*values, Fraction(10)] if name == "lg" else values
    return _elementary(name, [number(value) for value in values])


def _round(name: str, value: Value) -> int:
    if abs(value) > 10**15:
        raise Undefined("too large to round")
    return int(getattr(mpmath, name)(value))


def _of_whole_numbers(name: str, values: list[Value]) -> Value:
    if any(
        not isinstance(value, Fraction) or value.denominator != 1 or value < 0 for value in values
    ):
        raise Undefined("no whole numbers")
    whole = [int(value) for value in values]
    if name in ("factorial", "binom") and whole[0] > MAX_FACTORIAL:
        raise Undefined("too large")
    function = {"factorial": math.factorial, "binom": math.comb, "gcd": math.gcd, "lcm": math.lcm}[
        name
    ]
    return Fraction(function(*whole))  # type: ignore[operator]


def _unknown(name: str, values: list[Value]) -> Value:
    """An unknown function, without special properties, so that f(x+1) is not f(x)+f(1)."""
    seed = sum(ord(letter) * 7 for letter in name)
    return (
        mpmath.sin(sum(number(value) * (3 + n) for n, value in enumerate(values)) + seed)
        + mpmath.mpf(seed) / 50
    )


def _elementary(name: str, values: list[Any]) -> Any:
    value = values[0]
    if name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"):
        if abs(value) > 10**9:
            raise Undefined("too large an angle")
        result = getattr(mpmath, name)(value)
        return mpmath.mpf(0) if abs(result) < TOLERANCE else result
    if name in ("arcsin", "arccos", "arctan"):
        return getattr(mpmath, "a" + name[3:])(value)
    if name == "exp":
        if abs(value) > 2_000:
            raise Undefined("too large a power")
        return mpmath.exp(value)
    if value <= 0 or (len(values) > 1 and (values[1] <= 0 or values[1] == 1)):
        raise Undefined("not real")
    return mpmath.log(value) if len(values) == 1 else mpmath.log(value) / mpmath.log(values[1])
