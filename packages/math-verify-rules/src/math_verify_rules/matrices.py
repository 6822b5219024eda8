"""Matrices and vectors: times a number, transposed, as tuples; and the guard for a gold that is one
matrix.
"""

from __future__ import annotations

from fractions import Fraction

from math_verify_rules.nodes import Expression, Many, Node
from math_verify_rules.trees import Tree, Unreadable

MATRIX, DETERMINANT = "matrix", "determinant"
ROW = "row"


def scaled(matrix: Many, factor: Tree, text: str) -> Many:
    """A number times a matrix: each entry multiplied. Raises: Unreadable for entries that are no
    expressions.
    """
    if matrix.left != MATRIX:
        raise Unreadable(text)
    return _of_rows([[_times(factor, item, text) for item in row] for row in rows(matrix)])


def transposed(node: Node) -> Node:
    """A matrix with rows and columns exchanged; a tuple, of which it is not known what it is,
    unchanged.
    """
    if (
        isinstance(node, Many)
        and node.left == MATRIX
        and len({len(row) for row in rows(node)}) == 1
    ):
        return _of_rows([list(column) for column in zip(*rows(node), strict=True)])
    if isinstance(node, Many) and (node.left, node.right) == ("(", ")"):
        return node
    raise Unreadable("nothing that can be transposed")


def rows(matrix: Many) -> list[tuple[Node, ...]]:
    """The entries of a matrix."""
    return [row.items for row in matrix.items if isinstance(row, Many)]


def alike(gold: Many, answer: Many) -> tuple[Many, Many]:
    """A row or a column as a tuple, where the other side is one: a vector is written as either."""
    if MATRIX in (gold.left, answer.left):
        gold, answer = _as_matrix(gold), _as_matrix(answer)
        if gold.left != answer.left:
            return _as_tuple(gold), _as_tuple(answer)
    return gold, answer


def _as_matrix(node: Many) -> Many:
    """[[1, 2], [3, 4]] as a matrix: rows of one length in brackets of one kind."""
    lists = [item for item in node.items if isinstance(item, Many) and item.left == node.left]
    if (
        node.left not in ("[", "(", "{")
        or len(lists) != len(node.items)
        or len({len(row.items) for row in lists}) != 1
    ):
        return node
    return Many(tuple(Many(row.items, ROW, ROW) for row in lists), MATRIX, MATRIX)


def vector(node: Node) -> Node:
    """2i - 3j as the tuple (2, -3): a sum of multiples of i, j and k, with i and j at least; else
    the node itself.
    """
    terms = _terms(node.tree) if isinstance(node, Expression) else None
    if terms is None or not {"i", "j"} <= set(terms) <= {"i", "j", "k"}:
        return node
    return Many(
        tuple(Expression(terms[name], "") for name in ("i", "j", "k") if name in terms), "(", ")"
    )


def _times(factor: Tree, item: Node, text: str) -> Expression:
    if not isinstance(item, Expression):
        raise Unreadable(text)
    return Expression(("*", factor, item.tree), "")


def _of_rows(entries: list[list[Node]] | list[list[Expression]]) -> Many:
    return Many(tuple(Many(tuple(row), ROW, ROW) for row in entries), MATRIX, MATRIX)


def _as_tuple(node: Many) -> Many:
    if node.left == "[":
        return Many(node.items, "(", ")")
    entries = rows(node) if node.left == MATRIX else []
    if len(entries) == 1 and len(entries[0]) > 1:
        return Many(entries[0], "(", ")")
    if len(entries) > 1 and all(len(row) == 1 for row in entries):
        return Many(tuple(row[0] for row in entries), "(", ")")
    return node


def _terms(tree: Tree) -> dict[str, Tree] | None:
    """The factor of each unit vector of a sum; None if something else is in it, or one twice."""
    if tree[0] == "+":
        one, other = _terms(tree[1]), _terms(tree[2])
        return None if one is None or other is None or set(one) & set(other) else {**one, **other}
    if tree[0] == "neg":
        terms = _terms(tree[1])
        return None if terms is None else {name: ("neg", factor) for name, factor in terms.items()}
    if tree[0] == "var":
        return {tree[1]: ("num", Fraction(1))} if tree[1] in ("i", "j", "k") else None
    if tree[0] == "*" and tree[2][0] == "var" and tree[2][1] in ("i", "j", "k"):
        return {tree[2][1]: tree[1]}
    return None
