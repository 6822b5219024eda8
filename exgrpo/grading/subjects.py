"""The unknowns of inequalities, intervals and set-builders: the letters they bind, the letters they name."""

from __future__ import annotations

from exgrpo.grading.nodes import Cases, Chain, Expression, Many, Node, Region, children
from exgrpo.grading.regions import lone
from exgrpo.grading.trees import variables


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
    """The letters that an answer names as unknowns; a set-builder's letter is bound and does not count."""
    if isinstance(node, Chain):
        return unknowns(node)
    if isinstance(node, Many) and node.left == "":
        return {name for item in node.items for name in named(item)}
    return set()
