"""An answer as a tree: expressions, lists, relations, regions; see math_verify_rules.reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from math_verify_rules.trees import Tree, renamed, variables

LESS, GREATER = ("<", "<="), (">", ">=")


@dataclass(frozen=True)
class Expression:
    """A value; `text` is the original spelling, since a decimal's digits give its precision."""

    tree: Tree
    text: str


@dataclass(frozen=True)
class Many:
    """Several values: a bare list (no brackets), a set in braces, a pair or tuple or interval in
    brackets, a matrix.
    """

    items: tuple[Node, ...]
    left: str = ""
    right: str = ""
    joined: str = ","  # or "and", "or", "union"

    @property
    def ordered(self) -> bool:
        """Whether the order matters."""
        return self.left not in ("", "{")


@dataclass(frozen=True)
class Equation:
    """``left = right``; `left` as it was written, without spaces. Also a word and a colon: ``Paolo:
    18``.
    """

    left: str
    right: Node
    left_tree: Tree | None  # if it is an expression


@dataclass(frozen=True)
class Chain:
    """Inequalities in a row, ``-2 < x <= 3``, one ``x != 2``, or the ``x = 2`` of a case."""

    parts: tuple[Tree, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class Region:
    """A set of numbers: ``x in S`` and ``{x | condition}`` (with `variable`), without some
    (`except_`).
    """

    inside: Node | None  # None: all real numbers
    variable: str = ""
    except_: Node | None = None


@dataclass(frozen=True)
class Quantity:
    """A value and the words with it, in lower case: a unit, an ordinal suffix, what is counted."""

    value: Node
    words: frozenset[str]


@dataclass(frozen=True)
class Cases:
    """A different answer under each condition."""

    branches: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True)
class Residues:
    """The whole numbers that leave one of `values` when divided by `modulus`; `name` is their
    letter, or empty.
    """

    values: frozenset[int]
    modulus: int
    name: str


Node = Expression | Many | Equation | Chain | Region | Quantity | Cases | Residues


def children(node: Node) -> Iterator[Node]:
    """The child nodes."""
    if isinstance(node, Many):
        yield from node.items
    elif isinstance(node, Equation):
        yield node.right
    elif isinstance(node, Quantity):
        yield node.value
    elif isinstance(node, Region):
        yield from (each for each in (node.inside, node.except_) if each is not None)
    elif isinstance(node, Cases):
        yield from (each for branch in node.branches for each in branch)


def letters(node: Node) -> frozenset[str]:
    """The names of all variables below a node, not those of an equation's left side."""
    if isinstance(node, Expression):
        return variables(node.tree)
    if isinstance(node, Chain):
        return frozenset().union(*map(variables, node.parts))
    return frozenset().union(*map(letters, children(node)))


def rename(node: Node, names: dict[str, str]) -> Node:
    """A node with its variables renamed, all at once; left sides of equations stay."""
    if isinstance(node, Expression):
        return replace(node, tree=renamed(node.tree, names))
    if isinstance(node, Chain):
        return replace(node, parts=tuple(renamed(part, names) for part in node.parts))
    if isinstance(node, Many):
        return replace(node, items=tuple(rename(item, names) for item in node.items))
    if isinstance(node, Equation):
        return replace(node, right=rename(node.right, names))
    if isinstance(node, Quantity):
        return replace(node, value=rename(node.value, names))
    if isinstance(node, Region):
        inside, without = (each and rename(each, names) for each in (node.inside, node.except_))
        return Region(inside, names.get(node.variable, node.variable), without)
    if isinstance(node, Residues):
        return replace(node, name=names.get(node.name, node.name))
    return Cases(
        tuple((rename(value, names), rename(when, names)) for value, when in node.branches)
    )
