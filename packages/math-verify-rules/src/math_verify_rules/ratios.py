r"""Ratios, known up to a common factor: 6:4 is 3:2, and 3:2 is the number 3/2; and residue classes:
n \equiv 1 \pmod 4, "congruent to 2 or 3 modulo 4", n = 4k + 1, and 3 (mod 7) for 3.
"""

from __future__ import annotations

import re
from fractions import Fraction

from math_verify_rules.identity import constant, identical
from math_verify_rules.nodes import Expression, Many, Node, Residues
from math_verify_rules.splitting import split
from math_verify_rules.trees import Tree

RATIO = ":"
MAX_MODULUS = 1_000
_MODULUS = r"\(?\s*(?:\\[pb]?mod|\"?\bmod(?:ulo)?\b\"?)\s*\{?\s*(\d+)\s*\}?\s*\)?"
_CLASSES = re.compile(
    r"(?:(?P<name>\\?[a-zA-Z]+)\s*\\(?:equiv|cong)(?![a-z])\s*|"
    r"(?:\"?(?:those|numbers|integers)\"?\s+)?(?:[a-z]\s+)?(?:is |are "
    r")?\"?congruent\"?\s+\"?to\"?\s*)?"
    rf"(?P<values>[-\d\s,\\pmor\"and]+?)\s*{_MODULUS}",
)
_VALUE = re.compile(r"(\\pm\s*|-\s*)?(\d+)")


def ratios(gold: Node, answer: Node) -> frozenset[str] | None:
    """Two ratios with proportional terms; or one of two terms and their quotient."""
    mine, theirs = _terms(gold), _terms(answer)
    if mine is None or theirs is None or not any(isinstance(node, Many) for node in (gold, answer)):
        return None
    if (
        len(mine) != len(theirs)
        or _may_be_time(gold)
        or any(constant(term) == 0 for term in mine + theirs)
    ):
        return None
    products = (
        (("*", one, theirs[0]), ("*", other, mine[0]))
        for one, other in zip(mine, theirs, strict=True)
    )
    return frozenset(("ratios",)) if all(identical(*pair) for pair in products) else None


def _may_be_time(node: Node) -> bool:
    """10:20, which is no 1:2."""
    texts = (
        [item.text for item in node.items if isinstance(item, Expression)]
        if isinstance(node, Many)
        else []
    )
    return len(texts) == 2 and re.fullmatch(r"\d{1,2}:\d{2}", ":".join(texts)) is not None


def _terms(node: Node) -> list[Tree] | None:
    """The terms of a ratio; a quotient's two."""
    if isinstance(node, Expression):
        return [node.tree, ("num", Fraction(1))]
    if (
        not isinstance(node, Many)
        or node.left != RATIO
        or not all(isinstance(item, Expression) for item in node.items)
    ):
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


def residues(text: str) -> Residues | None:
    """The residue classes that a repaired text states; None if it is anything else."""
    if "mod" not in text:
        return None
    match = _CLASSES.fullmatch(text.strip())
    if match is None:
        return None
    modulus = int(match[3])
    found: set[int] = set()
    for piece in split(match["values"], r",|\"?\b(?:or|and)\b\"?")[0]:
        value = _VALUE.fullmatch(piece.strip())
        if value is None:
            if piece.strip():
                return None
            continue
        number = int(value[2])
        signs = (1, -1) if "pm" in (value[1] or "") else (-1,) if value[1] else (1,)
        found |= (
            {sign * number % modulus for sign in signs} if 0 < modulus <= MAX_MODULUS else set()
        )
    return Residues(frozenset(found), modulus, match["name"] or "") if found else None
