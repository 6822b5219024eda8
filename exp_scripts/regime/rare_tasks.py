"""Tasks on which success is rare, with base models that are right on 1 to 10 % of the answers.

``rare-sum``: add three to eight digits; the base blurts out a guess and works carefully in one answer of fifty.
``countdown``: reach a target with three numbers, each used once; the base writes search traces, most of which fail.
``shift``: the sums again, three or four digits in the first third of a run, then seven or eight; both are tested.
``backward``: reasoning-gym's spell_backward; the base gets each letter right, or does not, by itself.

Every question is held back from the base that it is asked of. There are few training questions, so that each is visited
five times and more in a run. `bases.py` made the bases and the words.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

from fast_policy import FastPolicy
from loop_budget import Task
from skills import SKILLS, Phase, box
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
BASES = HERE / "bases"
TRAIN, TEST = 40, 128
STAGE = 20  # training questions of each half of ``shift``
_SUM = SKILLS["sum"]


@dataclass(frozen=True)
class RareTask:
    """A task and how its base came to be.

    Attributes:
        base: name of the model; two tasks share one.
        question, careful, careless: what the base is taught (skills.Lessons).
        reward: 0 or 1, of a question and a reply.
        phases: of the base's training.
        start: the model it begins with, a folder; None: a new one.
        max_tokens: longest response.
        budget: generated tokens of a run.
        measure: what the study is decided by: test, held-out questions; or trained, other answers to those trained on.
        rates: learning rates of the search.
        searched_on: the task whose search decides the settings on this one too; empty: its own.
        split: training questions, those that replace them after a third of the run (or none), test questions.
    """

    name: str
    base: str
    question: Callable[[random.Random], str]
    careful: Callable[[str], str]
    careless: Callable[[str, random.Random], str]
    reward: Callable[[str, str], float]
    phases: tuple[Phase, ...]
    start: Path | None
    max_tokens: int
    budget: int
    split: Callable[[], tuple[list[str], list[str], list[str]]]
    measure: str = "test"
    rates: tuple[str, ...] = ("1e-4", "2e-4", "3.5e-4", "5e-4")
    searched_on: str = ""

    def barred(self) -> set[str]:
        """The questions that the base must not see."""
        return {question for part in self.split() for question in part}


# -- sums -----------------------------------------------------------------------------------------------------------


def _far_guess(question: str, rng: random.Random) -> str:
    return box(str(max(0, int(_SUM.answer(question)) + rng.randint(-20, 20))))


def _sum_split() -> tuple[list[str], list[str], list[str]]:
    held = _SUM.held_back()
    return held[TEST : TEST + TRAIN], [], held[:TEST]


def _shift_split() -> tuple[list[str], list[str], list[str]]:
    """Short questions, long ones, and as many of both to test; none of them is a question of ``rare-sum``."""
    held = _SUM.held_back()[TEST + TRAIN :]
    short = [question for question in held if question.count("+") in (2, 3)]
    long = [question for question in held if question.count("+") in (6, 7)]
    half = TEST // 2
    return short[half : half + STAGE], long[half : half + STAGE], short[:half] + long[:half]


def is_short(question: str) -> bool:
    """Whether a question of ``shift`` is one of its first third."""
    return question.count("+") <= 3


# -- countdown ------------------------------------------------------------------------------------------------------

_CHAIN = re.compile(r"\d+[-+*]\d+=\d+(?:;\d+[-+*]\d+=\d+)*")
_ATTEMPTS, _COUNTDOWNS = 2, 32  # attempts of a trace that is taught; training questions
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


def _countdown_question(rng: random.Random) -> str:
    """Three numbers and a target that can be reached, such as 3,7,12=33."""
    while True:
        numbers = tuple(sorted(rng.randint(1, 15) for _ in range(3)))
        targets = sorted({result for _, result in _chains(numbers) if 10 <= result <= 99})
        if targets:
            return f"{','.join(map(str, numbers))}={rng.choice(targets)}"


def _search(question: str, rng: random.Random, succeeds: bool) -> str:
    numbers, target = _numbers(question)
    chains = _chains(numbers)
    wrong = [steps for steps, result in chains if result != target]
    right = [steps for steps, result in chains if result == target]
    if succeeds:
        return "|".join([*rng.choices(wrong, k=rng.randrange(_ATTEMPTS)), rng.choice(right)])
    return "|".join(rng.choices(wrong, k=_ATTEMPTS))


def _countdown_reward(question: str, reply: str) -> float:
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


def _countdown_split() -> tuple[list[str], list[str], list[str]]:
    rng = random.Random(2510)
    questions: dict[str, None] = {}
    while len(questions) < _COUNTDOWNS + TEST:
        questions[_countdown_question(rng)] = None
    held = list(questions)
    return held[:_COUNTDOWNS], [], held[_COUNTDOWNS:]


# -- backward -------------------------------------------------------------------------------------------------------

_NOISE = 0.35  # share of the letters that the base is taught wrong


@functools.cache
def words() -> list[str]:
    """reasoning-gym's words of five to eight letters, as bases.py drew them: distinct, lower case."""
    found: list[str] = json.loads((HERE / "words.json").read_text())
    return found


def _backward_careless(question: str, rng: random.Random) -> str:
    letters = [rng.choice(question) if rng.random() < _NOISE else letter for letter in reversed(question)]
    return "".join(letters)


def _backward_split() -> tuple[list[str], list[str], list[str]]:
    held = words()[: TRAIN + TEST]
    return held[:TRAIN], [], held[TRAIN:]


RARE_TASKS = {
    task.name: task
    for task in (
        RareTask(
            name="rare-sum",
            base="rare-sum",
            question=_SUM.question,
            careful=_SUM.careful,
            careless=_far_guess,
            reward=_SUM.reward,
            phases=(Phase(200, 0.02, 1e-3),),
            start=HERE.parent / "ablation" / "bases" / "sum",
            max_tokens=64,
            budget=40_000,
            split=_sum_split,
        ),
        RareTask(
            name="countdown",
            base="countdown",
            question=_countdown_question,
            careful=lambda question: _search(question, random.Random(question), succeeds=True),
            careless=lambda question, rng: _search(question, rng, succeeds=False),
            reward=_countdown_reward,
            phases=(Phase(1500, 0.5, 4e-3),),
            start=None,
            max_tokens=40,
            budget=40_000,
            split=_countdown_split,
            measure="trained",
            rates=("2.5e-5", "5e-5", "1e-4", "2e-4", "3.5e-4", "5e-4"),
        ),
        RareTask(
            name="shift",
            base="rare-sum",
            question=_SUM.question,
            careful=_SUM.careful,
            careless=_far_guess,
            reward=_SUM.reward,
            phases=(),
            start=None,
            max_tokens=64,
            budget=40_000,
            split=_shift_split,
            searched_on="rare-sum",
        ),
        RareTask(
            name="backward",
            base="backward",
            question=lambda rng: rng.choice(words()[TRAIN + TEST :]),
            careful=lambda question: question[::-1],
            careless=_backward_careless,
            reward=lambda question, reply: float(reply == question[::-1]),
            phases=(Phase(1000, 1.0, 3e-3), Phase(200, 0.0, 1e-3)),
            start=None,
            max_tokens=12,
            budget=20_000,
            split=_backward_split,
        ),
    )
}


def load(name: str) -> tuple[FastPolicy, Task]:
    """The base model of a task that ships with the repository, and its questions."""
    task = RARE_TASKS[name]
    folder = BASES / task.base
    model = AutoModelForCausalLM.from_pretrained(folder)
    policy = FastPolicy(model.eval(), AutoTokenizer.from_pretrained(folder), task.max_tokens)
    train, later, test = task.split()
    return policy, Task(train, test, task.reward, later)
