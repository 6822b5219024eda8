"""Ratios, known up to a common factor: 6:4 is 3:2, and 3:2 is the number 3/2; and remainders, 3 (mod 7)."""

from __future__ import annotations

import re
from fractions import Fraction

from exgrpo.grading.identity import constant, identical
from exgrpo.grading.nodes import Expression, Many, Node, Residues
from exgrpo.grading.trees import Tree

RATIO = ":"


def ratios(gold: Node, answer: Node) -> frozenset[str] | None:
    """Two ratios with proportional terms; or one of two terms and their quotient."""
    mine, theirs = _terms(gold), _terms(answer)
    if mine is None or theirs is None or not any(isinstance(node, Many) for node in (gold, answer)):
        return None
    if len(mine) != len(theirs) or _may_be_time(gold) or any(constant(term) == 0 for term in mine + theirs):
        return None
    products = ((("*", one, theirs[0]), ("*", other, mine[0])) for one, other in zip(mine, theirs, strict=True))
    return frozenset(("ratios",)) if all(identical(*pair) for pair in products) else None


def _may_be_time(node: Node) -> bool:
    """10:20, which is no 1:2."""
    texts = [item.text for item in node.items if isinstance(item, Expression)] if isinstance(node, Many) else []
    return len(texts) == 2 and re.fullmatch(r"\d{1,2}:\d{2}", ":".join(texts)) is not None


def _terms(node: Node) -> list[Tree] | None:
    """The terms of a ratio; a quotient's two."""
    if isinstance(node, Expression):
        return [node.tree, ("num", Fraction(1))]
    if not isinstance(node, Many) or node.left != RATIO or not all(isinstance(item, Expression) for item in node.items):
        return None
    return [item.tree for item in node.items if isinstance(item, Expression)]


def remainders(gold: Node, answer: Node) -> frozenset[str] | None:
    """ "3 (mod 7)" for 3, where nothing is named and 3 is a remainder modulo 7."""
    classes = [node for node in (gold, answer) if isinstance(node, Residues)]
    numbers = [node for node in (gold, answer) if isinstance(node, Expression)]
    if len(classes) != 1 or len(numbers) != 1 or classes[0].name or len(classes[0].values) != 1:
        return None
    (value,) = classes[0].values
    return frozenset(("remainders",)) if constant(numbers[0].tree) == value else None
