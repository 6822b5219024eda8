r"""Trees of expressions, and the LaTeX tokens from which they are parsed.

Trees: ("num", Fraction), ("var", name), ("const", name), ("neg" or "deg" or "pct", a),
("+" or "*" or "/" or "^", a, b), ("call", function, arguments...). A letter is a variable, "i" too;
"f(x)" is a call of an unknown function, "?f".
"""

from __future__ import annotations

import re
from typing import Any

Tree = tuple[Any, ...]
MAX_TOKENS, MAX_DIGITS = 400, 400
FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "ln",
        "log",
        "lg",
        "exp",
        "sqrt",
        "min",
        "max",
        "gcd",
        "lcm",
        "abs",
    ]
)
UNKNOWN_FUNCTIONS = frozenset("fghFGHPQ")
GREEK = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "theta",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "phi",
        "chi",
        "psi",
        "omega",
        "Delta",
        "Lambda",
        "Omega",
    ]
)
_TOKEN = re.compile(
    r"\s*(\\[a-zA-Z]+|\\[{}|%$]|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]+|[-+*/^_()\[\]{}|!°%',])"
)


class Unreadable(ValueError):
    """Not an expression of a known form."""


def variables(tree: Tree) -> frozenset[str]:
    """The names of the variables of a tree."""
    if tree[0] == "var":
        return frozenset((tree[1],))
    return frozenset().union(*(variables(part) for part in tree[1:] if isinstance(part, tuple)))


def contains(tree: Tree, kind: str) -> bool:
    """Whether a node of that kind ("deg"), or a constant of that name ("pi"), is in a tree."""
    return (
        tree[0] == kind
        or (tree[0] == "const" and tree[1] == kind)
        or any(contains(part, kind) for part in tree[1:] if isinstance(part, tuple))
    )


def renamed(tree: Tree, names: dict[str, str]) -> Tree:
    """The tree with its variables renamed, all at once."""
    if tree[0] == "var":
        return ("var", names.get(tree[1], tree[1]))
    return tuple(renamed(part, names) if isinstance(part, tuple) else part for part in tree)


def tokens(latex: str) -> list[str]:
    tokens_read: list[str] = []
    at = 0
    text = latex.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or len(tokens_read) > MAX_TOKENS or len(token[1]) > MAX_DIGITS:
            raise Unreadable(latex)
        tokens_read += _letters(token[1]) if token[1].isalpha() else [token[1]]
        at = token.end()
    if not tokens_read:
        raise Unreadable(latex)
    return tokens_read


def _letters(run: str) -> list[str]:
    """A run of letters: the name of a function, or a product of at most three variables; a longer
    one is a word.
    """
    if run in FUNCTIONS or run == "pi":
        return ["\\" + run]
    if len(run) > 3:
        raise Unreadable(run)
    return list(run)
