"""Tasks on which success is rare, with base models that are right on 1 to 10 % of the answers.

``rare-sum``: add three to eight digits; the base blurts out a guess and works carefully in one answer of fifty.
``backward``: reasoning-gym's spell_backward; the base gets each letter right, or does not, by itself.
``rare-mod``: the remainder by 7 of three to eight digits; guesses are from 0 to 40, one answer of fifty careful.
``sorting``: five to eight digits in rising order (number_sorting); each place is right or not by itself.
``caesar``: words whose letters are shifted by one to three (caesar_cipher); letters as in ``backward``.

Every question is held back from the base that it is asked of. There are few training questions, so that each is visited
five times and more in a run. `bases.py` made the bases and the words.
"""

from __future__ import annotations

import functools
import json
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import skills
from fast_policy import FastPolicy
from minimal_loop import Task
from skills import BASES, SKILLS, Phase, Skill, box
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
TRAIN, TEST = 40, 128
KEPT_BACK = 192  # from the bases: more than are asked
LETTERS = string.ascii_lowercase
_SUM, _MOD = SKILLS["sum"], SKILLS["mod"]


@dataclass(frozen=True)
class RareTask:
    """A task and how its base came to be.

    Attributes:
        question, careful, careless: what the base is taught (skills.Lessons).
        reward: 0 or 1, of a question and a reply.
        phases: of the base's training.
        start: the model it begins with, a folder; None: a new one.
        max_tokens: longest response.
        budget: generated tokens of a run.
        kept_back: the questions that the base never saw; those of `split` are among them.
        split: training questions, test questions.
    """

    name: str
    question: Callable[[random.Random], str]
    careful: Callable[[str], str]
    careless: Callable[[str, random.Random], str]
    reward: Callable[[str, str], float]
    phases: tuple[Phase, ...]
    start: Path | None
    max_tokens: int
    budget: int
    kept_back: Callable[[], list[str]]
    split: Callable[[], tuple[list[str], list[str]]]


# -- sums -----------------------------------------------------------------------------------------------------------


def _far_guess(question: str, rng: random.Random) -> str:
    return box(str(max(0, int(_SUM.answer(question)) + rng.randint(-20, 20))))


def _wild_guess(question: str, rng: random.Random) -> str:
    return box(str(rng.randint(0, 40)))


def _held_back(skill: Skill) -> tuple[list[str], list[str]]:
    """Of the first questions that the base never saw."""
    held = skill.held_back()
    return held[TEST : TEST + TRAIN], held[:TEST]


def _sums_kept_back() -> list[str]:
    """The first ones, and as many short and long ones of those that follow."""
    held = _SUM.held_back()
    short = [question for question in held[KEPT_BACK:] if question.count("+") in (2, 3)]
    long = [question for question in held[KEPT_BACK:] if question.count("+") in (6, 7)]
    return [*held[:KEPT_BACK], *short[: KEPT_BACK // 2], *long[: KEPT_BACK // 2]]


# -- many small choices, each right or wrong by itself ----------------------------------------------------------------

_NOISE = 0.35  # share of the letters or numbers that the base is taught wrong


@functools.cache
def words() -> list[str]:
    """reasoning-gym's words of five to eight letters, as bases.py drew them: distinct, lower case."""
    found: list[str] = json.loads((HERE / "words.json").read_text())
    return found


def noisy(right: Sequence[str], others: Sequence[str], rng: random.Random) -> list[str]:
    """Each place wrong, or right by chance, with the same probability."""
    return [rng.choice(others) if rng.random() < _NOISE else each for each in right]


def _backward_careless(question: str, rng: random.Random) -> str:
    return "".join(noisy(question[::-1], question, rng))


def _digits_to_sort(rng: random.Random) -> str:
    return "".join(rng.sample(string.digits, rng.randint(5, 8)))


def _sorted(question: str) -> str:
    return "".join(sorted(question))


def _sorting_careless(question: str, rng: random.Random) -> str:
    return "".join(noisy(_sorted(question), question, rng))


def _ciphered(word: str, rng: random.Random) -> str:
    """The shift and the letters shifted by it, such as 2:ecv for cat."""
    shift = rng.randint(1, 3)
    return f"{shift}:" + "".join(_shifted(letter, shift) for letter in word)


def _shifted(letter: str, by: int) -> str:
    return LETTERS[(LETTERS.index(letter) + by) % len(LETTERS)]


def _deciphered(question: str) -> str:
    shift, letters = question.split(":")
    return "".join(_shifted(letter, -int(shift)) for letter in letters)


def _caesar_careless(question: str, rng: random.Random) -> str:
    return "".join(noisy(_deciphered(question), LETTERS, rng))


@functools.cache
def kept_back(draw: Callable[[random.Random], str], count: int = KEPT_BACK) -> list[str]:
    """Distinct questions, always the same."""
    rng = random.Random(2510)
    questions: dict[str, None] = {}
    while len(questions) < count:
        questions[draw(rng)] = None
    return list(questions)


def split(held: list[str], train: int = TRAIN) -> tuple[list[str], list[str]]:
    return held[:train], held[train : train + TEST]


def _ciphered_word(rng: random.Random) -> str:
    return _ciphered(rng.choice(words()), rng)


small_choices = functools.partial(
    RareTask,
    phases=(Phase(1000, 1.0, 3e-3), Phase(200, 0.0, 1e-3)),
    start=None,
    max_tokens=12,
    budget=20_000,
)
RARE_TASKS = {
    task.name: task
    for task in (
        RareTask(
            name="rare-sum",
            question=_SUM.question,
            careful=_SUM.careful,
            careless=_far_guess,
            reward=_SUM.reward,
            phases=(Phase(200, 0.02, 1e-3),),
            start=BASES / "sum",
            max_tokens=64,
            budget=40_000,
            kept_back=_sums_kept_back,
            split=lambda: _held_back(_SUM),
        ),
        small_choices(
            name="backward",
            question=lambda rng: rng.choice(words()[KEPT_BACK:]),
            careful=lambda question: question[::-1],
            careless=_backward_careless,
            reward=lambda question, reply: float(reply == question[::-1]),
            kept_back=lambda: words()[:KEPT_BACK],
            split=lambda: split(words()),
        ),
        RareTask(
            name="rare-mod",
            question=_MOD.question,
            careful=_MOD.careful,
            careless=_wild_guess,
            reward=_MOD.reward,
            phases=(Phase(200, 0.02, 1e-3),),
            start=BASES / "mod",
            max_tokens=56,
            budget=40_000,
            kept_back=lambda: _MOD.held_back()[:KEPT_BACK],
            split=lambda: _held_back(_MOD),
        ),
        small_choices(
            name="sorting",
            question=_digits_to_sort,
            careful=_sorted,
            careless=_sorting_careless,
            reward=lambda question, reply: float(reply == _sorted(question)),
            kept_back=lambda: kept_back(_digits_to_sort),
            split=lambda: split(kept_back(_digits_to_sort)),
        ),
        small_choices(
            name="caesar",
            question=_ciphered_word,
            careful=_deciphered,
            careless=_caesar_careless,
            reward=lambda question, reply: float(reply == _deciphered(question)),
            kept_back=lambda: kept_back(_ciphered_word),
            split=lambda: split(kept_back(_ciphered_word)),
        ),
    )
}


def load(task: RareTask, draw: int = 0, base: int = 0) -> tuple[FastPolicy, Task]:
    """A task's base model and its questions; SystemExit with the command that makes the base, if it is not there.

    Args:
        draw: 0, the questions of `split`; other numbers: other questions, of those that the bases never saw.
        base: 0 or 1, the same lessons with another seed.
    """
    folder = skills.base(base_name(task, base), f"bases.py {task.name} --base {base}")
    model = AutoModelForCausalLM.from_pretrained(folder)
    policy = FastPolicy(model.eval(), AutoTokenizer.from_pretrained(folder), task.max_tokens)
    return policy, Task(*questions(task, draw), task.reward)


def questions(task: RareTask, draw: int) -> tuple[list[str], list[str]]:
    """Training and test questions of a draw."""
    train, test = task.split()
    if draw:
        drawn = random.Random(draw).sample(task.kept_back(), len(train) + len(test))
        train, test = drawn[: len(train)], drawn[len(train) :]
    return train, test


def base_name(task: RareTask, base: int) -> str:
    """Of the base's folder."""
    return f"{task.name}-{base}" if base else task.name
