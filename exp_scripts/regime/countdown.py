"""Countdown with three numbers: reach a target with each number once, by +, - and *, from left to right.

A question is such as 3,7,12=29; a reply is attempts such as 3*12=36;36-7=29, parted by bars; the last one counts.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from itertools import permutations, product

_CHAIN = re.compile(r"\d+[-+*]\d+=\d+(?:;\d+[-+*]\d+=\d+)*")
_ATTEMPTS = 2  # of a trace that is taught
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def chain(numbers: tuple[int, ...], operations: tuple[str, ...]) -> tuple[str, int] | None:
    """The steps of applying operations from left to right, and the result; None where a step is negative or large."""
    total, steps = numbers[0], []
    for number, operation in zip(numbers[1:], operations, strict=True):
        result = _OPERATIONS[operation](total, number)
        if not 0 <= result <= 199:
            return None
        steps.append(f"{total}{operation}{number}={result}")
        total = result
    return ";".join(steps), total


@functools.cache
def _chains(numbers: tuple[int, ...]) -> list[tuple[str, int]]:
    orders, signs = sorted(set(permutations(numbers))), list(product("+-*", repeat=len(numbers) - 1))
    return [found for order in orders for sign in signs if (found := chain(order, sign)) is not None]


def _numbers(question: str) -> tuple[tuple[int, ...], int]:
    given, target = question.split("=")
    return tuple(map(int, given.split(","))), int(target)


def draw_question(rng: random.Random) -> str:
    """Three numbers and a target that can be reached, such as 3,7,12=33."""
    while True:
        numbers = tuple(sorted(rng.randint(1, 15) for _ in range(3)))
        targets = sorted({result for _, result in _chains(numbers) if 10 <= result <= 99})
        if targets:
            return f"{','.join(map(str, numbers))}={rng.choice(targets)}"


def search(question: str, rng: random.Random, succeeds: bool) -> str:
    numbers, target = _numbers(question)
    chains = _chains(numbers)
    wrong = [steps for steps, result in chains if result != target]
    right = [steps for steps, result in chains if result == target]
    if succeeds:
        return "|".join([*rng.choices(wrong, k=rng.randrange(_ATTEMPTS)), rng.choice(right)])
    return "|".join(rng.choices(wrong, k=_ATTEMPTS))


def reward(question: str, reply: str) -> float:
    """Whether the last attempt uses each number once, calculates rightly and ends with the target."""
    numbers, target = _numbers(question)
    last = reply.rpartition("|")[2]
    if not _CHAIN.fullmatch(last):
        return 0.0
    steps = last.split(";")
    used = [int(re.match(r"\d+", steps[0])[0])]  # type: ignore[index]
    for step in steps:
        used.append(int(re.search(r"[-+*](\d+)=", step)[1]))  # type: ignore[index]
    operations = tuple(re.search(r"\d([-+*])", step)[1] for step in steps)  # type: ignore[index]
    return float(sorted(used) == sorted(numbers) and chain(tuple(used), operations) == (last, target))
