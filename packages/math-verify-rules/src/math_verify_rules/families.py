"""Parameters: k pi and n pi, 2Cx and 2cx; and families over all integers, compared as sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations

import mpmath

from math_verify_rules.evaluation import DIGITS, Undefined, evaluate, number
from math_verify_rules.nodes import Equation, Expression, Many, Node, Residues, letters
from math_verify_rules.trees import Tree, contains, variables

PARAMETERS = frozenset("klmnjtscC")
CONSTANTS = frozenset("CcKkDd")
MAX_PARAMETERS, MAX_PERIODS = 3, 24
Declared = tuple[frozenset[str], frozenset[str]]  # letters that the gold and the answer declare
Family = tuple[mpmath.mpf, mpmath.mpf]  # first value, step


def renamings(
    gold: Node, answer: Node, integers: bool, declared: Declared
) -> Iterator[dict[str, str]]:
    """Names for the answer's parameters with which it may equal the gold.

    Only letters that the other side does not have are renamed, each to another: y = bx + a stays
    what it is. They are the same letter in the other case, constants of integration, or letters
    parameters have, where the gold names its left side or says that a
    letter stands for whole numbers: a bare n^2 is about the question's n.
    """
    mine, theirs = letters(gold) - letters(answer), letters(answer) - letters(gold)
    if not mine or len(mine) != len(theirs) or len(mine) > MAX_PARAMETERS:
        return
    named = gold.left if isinstance(gold, Equation) else ""
    known = mine <= PARAMETERS | declared[0] or named.startswith("(")
    family = (
        bool(integers or named)
        and known
        and theirs <= PARAMETERS | declared[1]
        and not mine & set(named)
    )
    constant = "C" in mine and mine == _constants(gold) and theirs == _constants(answer)
    for order in permutations(sorted(theirs)):
        names = dict(zip(order, sorted(mine), strict=True))
        if family or constant or all(new.swapcase() == old for old, new in names.items()):
            yield names


def _constants(node: Node) -> frozenset[str]:
    """The letters that can only be constants of integration: C or K, added once to what has a
    variable.
    """
    node = node.right if isinstance(node, Equation) else node
    if not isinstance(node, Expression):
        return frozenset()
    tree = node.tree
    if (
        tree[0] == "+"
        and tree[2][0] == "var"
        and tree[2][1] not in variables(tree[1])
        and variables(tree[1])
    ):
        return frozenset((tree[2][1],)) & CONSTANTS
    if (
        tree[0] == "+"
        and tree[1][0] == "var"
        and tree[1][1] not in variables(tree[2])
        and variables(tree[2])
    ):
        return frozenset((tree[1][1],)) & CONSTANTS
    return frozenset()


def same_family(gold: Node, answer: Node, integers: bool) -> bool:
    r"""Whether both are arithmetic progressions over all integers with the same numbers: kπ and
    -nπ, not 2nπ.

    `integers`: the gold says what its letter stands for; else it must be an angle (with π) named by
    its left side.
    """
    names = {node.name for node in (gold, answer) if isinstance(node, Residues) and node.name}
    if len(names) > 1:
        return False
    first = gold.items[0] if isinstance(gold, Many) and gold.items else gold
    named = isinstance(first, Equation)
    with mpmath.workdps(DIGITS):
        mine, theirs = _families(gold), _families(answer)
        whole = integers or any(isinstance(node, Residues) for node in (gold, answer))
        if mine is None or theirs is None or not (whole or (named and _angles(gold))):
            return False
        period = _common([step for _first, step in mine + theirs])
        return period is not None and _residues(mine, period) == _residues(theirs, period)


def _angles(node: Node) -> bool:
    if isinstance(node, Equation):
        return _angles(node.right)
    if isinstance(node, Many):
        return all(_angles(item) for item in node.items)
    return isinstance(node, Expression) and contains(node.tree, "pi")


def _families(node: Node) -> list[Family] | None:
    if isinstance(node, Residues):
        return [(mpmath.mpf(value), mpmath.mpf(node.modulus)) for value in node.values]
    if isinstance(node, Equation):
        plain = re.fullmatch(r"\\?[a-zA-Z]+(?:_\w)?", node.left) and node.left not in letters(
            node.right
        )
        return _families(node.right) if plain else None
    if isinstance(node, Many) and node.left in ("", "{"):
        families_of_items = [_families(item) for item in node.items]
        if None in families_of_items:
            return None
        return [family for families in families_of_items for family in families or []]
    family = _progression(node.tree) if isinstance(node, Expression) else None
    return None if family is None else [family]


def _progression(tree: Tree) -> Family | None:
    """First value and step, if an expression is linear in its only letter, a parameter."""
    names = variables(tree)
    if len(names) != 1 or not names <= PARAMETERS:
        return None
    (name,) = names
    try:
        at = [number(evaluate(tree, {name: Fraction(n)})) for n in (0, 1, 2, 7)]
    except Undefined:
        return None
    step = at[1] - at[0]
    linear = all(
        abs(value - at[0] - n * step) < mpmath.mpf(10) ** -30
        for n, value in ((2, at[2]), (7, at[3]))
    )
    return (at[0], abs(step)) if linear and abs(step) > mpmath.mpf(10) ** -9 else None


def _common(steps: list[mpmath.mpf]) -> mpmath.mpf | None:
    """The least common multiple of the steps; None if it is above MAX_PERIODS times the longest."""
    longest = max(steps)
    for times in range(1, MAX_PERIODS + 1):
        if all(_whole(longest * times / step) for step in steps):
            return longest * times
    return None


def _whole(value: mpmath.mpf) -> bool:
    return bool(value < 1_000 and abs(value - mpmath.nint(value)) < mpmath.mpf(10) ** -30)


def _residues(families: list[Family], period: mpmath.mpf) -> set[str]:
    """Every value within one period, as text of twenty digits."""
    residues = set()
    for first, step in families:
        for n in range(int(mpmath.nint(period / step))):
            share = mpmath.frac((first + n * step) / period + mpmath.mpf(10) ** -30)
            residues.add(mpmath.nstr(mpmath.nint(share * mpmath.mpf(10) ** 20), 25))
    return residues
