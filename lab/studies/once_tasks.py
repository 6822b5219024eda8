"""Three tasks with 2,000 training questions, each asked at most once in a run, kept back until methods are chosen.

``larger``: of two numbers of eight digits the larger digit at each place.
``rotate``: six letters turned to the left by one to five places.
``atbash``: six to eight letters in the cipher that exchanges a with z, b with y and so on.

The bases get each place right, or do not, by itself: they are right on 3 to 5 % of the answers.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable

from many_answers import MANY_ANSWERS
from rare_tasks import LETTERS, RARE_TASKS, RareTask, kept_back, noisy, small_choices, split
from skills import Phase

TRAIN, KEPT_BACK = 2000, 3000
PLACES, ROTATED = 8, 6


def _two_numbers(rng: random.Random) -> str:
    return ",".join("".join(rng.choices(string.digits, k=PLACES)) for _ in range(2))


def _larger(question: str) -> str:
    return "".join(map(max, *question.split(",")))


def _letters_to_rotate(rng: random.Random) -> str:
    return f"{rng.randint(1, ROTATED - 1)}:" + "".join(rng.sample(LETTERS, ROTATED))


def _rotated(question: str) -> str:
    places, letters = question.split(":")
    return letters[int(places) :] + letters[: int(places)]


def _letters(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(6, 8)))


def _mirrored(question: str) -> str:
    return question.translate(str.maketrans(LETTERS, LETTERS[::-1]))


def _asked_once(
    name: str,
    question: Callable[[random.Random], str],
    careful: Callable[[str], str],
    careless: Callable[[str, random.Random], str],
    lessons: int = 1000,
) -> RareTask:
    return small_choices(
        name=name,
        phases=(Phase(lessons, 1.0, 3e-3), Phase(200, 0.0, 1e-3)),
        question=question,
        careful=careful,
        careless=careless,
        reward=lambda question, reply: float(reply == careful(question)),
        budget=40_000,
        kept_back=lambda: kept_back(question, KEPT_BACK),
        split=lambda: split(kept_back(question, KEPT_BACK), TRAIN),
    )


ONCE_TASKS = {
    "larger": _asked_once(
        "larger",
        _two_numbers,
        _larger,
        lambda question, rng: "".join(noisy(_larger(question), string.digits, rng)),
        lessons=2000,
    ),
    "rotate": _asked_once(
        "rotate", _letters_to_rotate, _rotated, lambda question, rng: "".join(noisy(_rotated(question), LETTERS, rng))
    ),
    "atbash": _asked_once(
        "atbash", _letters, _mirrored, lambda question, rng: "".join(noisy(_mirrored(question), LETTERS, rng))
    ),
}
EVERY_TASK = RARE_TASKS | ONCE_TASKS | MANY_ANSWERS
