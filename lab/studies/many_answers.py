"""Three tasks with many right answers to each question, kept apart from those of one answer.

``addends``: a number from 6 to 21; right are three digits that add up to it (28 to 75 answers).
``anagram``: five letters; right is each other order of them (119 answers).
``pattern``: six of c and v; right are letters of which those at c are consonants, at v vowels (millions).

The bases get each place right, or do not, by themselves. `bases.py` makes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from rare_tasks import LETTERS, RareTask, kept_back, small_choices, split
from skills import Phase

VOWELS = "aeiou"
CONSONANTS = "".join(letter for letter in LETTERS if letter not in VOWELS)
_RIGHT_PLACES = 0.15  # of pattern: share of letters that the base is taught right


def _number(rng: random.Random) -> str:
    return f"{rng.randint(6, 21)}:{rng.choice(LETTERS)}{rng.choice(LETTERS)}"  # letters: so that questions are many


def _adds_up(question: str, reply: str) -> bool:
    digits = len(reply) == 3 and reply.isascii() and reply.isdigit()
    return digits and sum(map(int, reply)) == int(question.partition(":")[0])


def _five_letters(rng: random.Random) -> str:
    return "".join(rng.sample(LETTERS, 5))


def _another_order(question: str, reply: str) -> bool:
    return reply != question and sorted(reply) == sorted(question)


def _pattern(rng: random.Random) -> str:
    return "".join(rng.choice("ccv") for _ in range(5)) + rng.choice("cv") + ":" + rng.choice(LETTERS)


def _has_pattern(question: str, reply: str) -> bool:
    kinds = ["v" if letter in VOWELS else "c" if letter in CONSONANTS else "" for letter in reply]
    return "".join(kinds) == question.partition(":")[0]


def _careless_pattern(question: str, rng: random.Random) -> str:
    return "".join(
        rng.choice((VOWELS if kind == "v" else CONSONANTS) if rng.random() < _RIGHT_PLACES else LETTERS)
        for kind in question.partition(":")[0]
    )


def _task(
    name: str,
    question: Callable[[random.Random], str],
    careful: Callable[[str], str],
    careless: Callable[[str, random.Random], str],
    right: Callable[[str, str], bool],
) -> RareTask:
    """`careful`: one of the right answers; no base is taught it."""
    return small_choices(
        name=name,
        question=question,
        careful=careful,
        careless=careless,
        reward=lambda question, reply: float(right(question, reply)),
        phases=(Phase(1000, 0.0, 3e-3),),
        kept_back=lambda: kept_back(question),
        split=lambda: split(kept_back(question)),
    )


def _addends(question: str) -> str:
    left, digits = int(question.partition(":")[0]), []
    for _ in range(3):
        digits.append(min(9, left))
        left -= digits[-1]
    return "".join(map(str, digits))


MANY_ANSWERS = {
    "addends": _task(
        "addends",
        _number,
        _addends,
        lambda question, rng: "".join(str(rng.randint(0, 9)) for _ in range(3)),
        _adds_up,
    ),
    "anagram": _task(
        "anagram",
        _five_letters,
        lambda question: question[::-1],
        lambda question, rng: "".join(rng.choices(question, k=5)),
        _another_order,
    ),
    "pattern": _task(
        "pattern",
        _pattern,
        lambda question: question.partition(":")[0].replace("c", "b").replace("v", "a"),
        _careless_pattern,
        _has_pattern,
    ),
}
