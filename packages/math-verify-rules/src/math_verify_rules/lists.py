"""Match the items of two lists, in order or in any order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from math_verify_rules.nodes import Equation, Many, Node

Used = frozenset[str]


def mixed(gold: Many, answer: Many) -> bool:
    """Whether two lists of equal length are of kinds with different meanings.

    Brackets must be the same, since (0, 9) is not [0, 9). A bare list may stand for a set in
    braces; for a tuple where no interval can be meant: of three items or more, or of names with
    their values.
    """
    if (gold.joined == "union") != (answer.joined == "union"):
        return True
    if gold.ordered != answer.ordered:
        bare, tuple_ = (answer, gold) if gold.ordered else (gold, answer)
        named = all(isinstance(item, Equation) for item in bare.items)
        return (
            bare.left != ""
            or tuple_.left != "("
            or (len(tuple_.items) < 3 and bare is answer and not named)
        )
    return gold.ordered and (gold.left, gold.right) != (answer.left, answer.right)


def without_repeats(many: Many) -> Many:
    """A list whose order does not count, each item once."""
    return many if many.ordered else replace(many, items=tuple(dict.fromkeys(many.items)))


def by_names(many: Many) -> bool:
    """Whether each item is the value of another name: a = -2, b = -2 are two values, not
    one twice.
    """
    names = {item.left for item in many.items if isinstance(item, Equation)}
    return not many.ordered and len(names) == len(many.items) > 1


def matched(gold: Many, answer: Many, same: Callable[[Node, Node], Used | None]) -> Used | None:
    """The rules by which each item of the gold matches a different item of the answer; None if one
    has no match.
    """
    used: Used = frozenset()
    mine, theirs = list(gold.items), list(answer.items)
    if gold.ordered or answer.ordered:
        mine = _by_name(mine) if gold.left == "" else mine
        theirs = _by_name(theirs) if answer.left == "" else theirs
        for one, other in zip(mine, theirs, strict=True):
            rules = same(one, other)
            if rules is None:
                return None
            used |= rules
        return used
    for one in mine:
        for n, other in enumerate(theirs):
            rules = same(one, other)
            if rules is not None:
                used |= rules
                del theirs[n]
                break
        else:
            return None
    return used


def _by_name(items: list[Node]) -> list[Node]:
    """x = 1, y = 2 in the order of the letters."""
    names = [
        item.left
        for item in items
        if isinstance(item, Equation) and re.fullmatch(r"[a-zA-Z](?:_\d)?", item.left)
    ]
    if len(names) != len(items) or len(set(names)) != len(names):
        return items
    return [
        item for _name, item in sorted(zip(names, items, strict=True), key=lambda pair: pair[0])
    ]
