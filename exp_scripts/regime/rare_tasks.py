"""Tasks on which success is rare, with base models that are right on 1 to 10 % of the answers.

``rare-sum``: add three to eight digits; the base blurts out a guess and works carefully in one answer of fifty.
``countdown``: reach a target with three numbers, each used once; the base writes search traces, most of which fail.
``shift``: the sums again, three or four digits in the first third of a run, then seven or eight; both are tested.
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

import countdown
from fast_policy import FastPolicy
from skills import SKILLS, Phase, Skill, box
from study_loop import StudyTask
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
BASES = HERE / "bases"
TRAIN, TEST = 40, 128
STAGE = 20  # training questions of each half of ``shift``
KEPT_BACK = 192  # from the bases: more than are asked, and as many of the halves of ``shift`` together
LETTERS = string.ascii_lowercase
_SUM, _MOD = SKILLS["sum"], SKILLS["mod"]


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
        search_seeds: the first for all candidates, the others for the finalists too.
        searched_on: the task whose search decides the settings on this one too; empty: its own.
        kept_back: the questions that the base never saw; those of `split` are among them.
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
    kept_back: Callable[[], list[str]]
    split: Callable[[], tuple[list[str], list[str], list[str]]]
    measure: str = "test"
    rates: tuple[str, ...] = ("1e-4", "2e-4", "3.5e-4", "5e-4")
    search_seeds: tuple[int, ...] = (1000, 1001)
    searched_on: str = ""


# -- sums -----------------------------------------------------------------------------------------------------------


def _far_guess(question: str, rng: random.Random) -> str:
    return box(str(max(0, int(_SUM.answer(question)) + rng.randint(-20, 20))))


def _wild_guess(question: str, rng: random.Random) -> str:
    return box(str(rng.randint(0, 40)))


def _held_back(skill: Skill) -> tuple[list[str], list[str], list[str]]:
    """Of the first questions that the base never saw."""
    held = skill.held_back()
    return held[TEST : TEST + TRAIN], [], held[:TEST]


def _short_and_long(held: list[str]) -> tuple[list[str], list[str]]:
    short = [question for question in held if question.count("+") in (2, 3)]
    return short, [question for question in held if question.count("+") in (6, 7)]


def _sums_kept_back() -> list[str]:
    held = _SUM.held_back()
    short, long = _short_and_long(held[KEPT_BACK:])
    return [*held[:KEPT_BACK], *short[: KEPT_BACK // 2], *long[: KEPT_BACK // 2]]


def _shift_split() -> tuple[list[str], list[str], list[str]]:
    """Short questions, long ones, and as many of both to test; none of them is a question of ``rare-sum``."""
    short, long = _short_and_long(_SUM.held_back()[TEST + TRAIN :])
    half = TEST // 2
    return short[half : half + STAGE], long[half : half + STAGE], short[:half] + long[:half]


def is_short(question: str) -> bool:
    """Whether a question of ``shift`` is one of its first third."""
    return question.count("+") <= 3


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


def split(held: list[str], train: int = TRAIN) -> tuple[list[str], list[str], list[str]]:
    return held[:train], [], held[train : train + TEST]


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
            base="rare-sum",
            question=_SUM.question,
            careful=_SUM.careful,
            careless=_far_guess,
            reward=_SUM.reward,
            phases=(Phase(200, 0.02, 1e-3),),
            start=HERE.parent / "ablation" / "bases" / "sum",
            max_tokens=64,
            budget=40_000,
            kept_back=_sums_kept_back,
            split=lambda: _held_back(_SUM),
        ),
        RareTask(
            name="countdown",
            base="countdown",
            question=countdown.draw_question,
            careful=lambda question: countdown.search(question, random.Random(question), succeeds=True),
            careless=lambda question, rng: countdown.search(question, rng, succeeds=False),
            reward=countdown.reward,
            phases=(Phase(1500, 0.5, 4e-3),),
            start=None,
            max_tokens=40,
            budget=160_000,
            kept_back=lambda: kept_back(countdown.draw_question),
            split=lambda: split(kept_back(countdown.draw_question), 32),
            measure="trained",
            rates=("5e-5", "1e-4", "2e-4", "3.5e-4"),
            search_seeds=(1000,),
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
            kept_back=_sums_kept_back,
            split=_shift_split,
            searched_on="rare-sum",
        ),
        small_choices(
            name="backward",
            base="backward",
            question=lambda rng: rng.choice(words()[KEPT_BACK:]),
            careful=lambda question: question[::-1],
            careless=_backward_careless,
            reward=lambda question, reply: float(reply == question[::-1]),
            kept_back=lambda: words()[:KEPT_BACK],
            split=lambda: split(words()),
        ),
        RareTask(
            name="rare-mod",
            base="rare-mod",
            question=_MOD.question,
            careful=_MOD.careful,
            careless=_wild_guess,
            reward=_MOD.reward,
            phases=(Phase(200, 0.02, 1e-3),),
            start=HERE.parent / "ablation" / "bases" / "mod",
            max_tokens=56,
            budget=40_000,
            kept_back=lambda: _MOD.held_back()[:KEPT_BACK],
            split=lambda: _held_back(_MOD),
        ),
        small_choices(
            name="sorting",
            base="sorting",
            question=_digits_to_sort,
            careful=_sorted,
            careless=_sorting_careless,
            reward=lambda question, reply: float(reply == _sorted(question)),
            kept_back=lambda: kept_back(_digits_to_sort),
            split=lambda: split(kept_back(_digits_to_sort)),
        ),
        small_choices(
            name="caesar",
            base="caesar",
            question=_ciphered_word,
            careful=_deciphered,
            careless=_caesar_careless,
            reward=lambda question, reply: float(reply == _deciphered(question)),
            kept_back=lambda: kept_back(_ciphered_word),
            split=lambda: split(kept_back(_ciphered_word)),
        ),
    )
}


def load(name: str, draw: int = 0, base: int = 0) -> tuple[FastPolicy, StudyTask]:
    """A base model of a task that ships with the repository, and its questions.

    Args:
        draw: 0, the questions of `split`; other numbers: other questions, of those that the bases never saw.
        base: 0 or 1, the same lessons with another seed.
    """
    return load_task(RARE_TASKS[name], draw, base)


def load_task(task: RareTask, draw: int = 0, base: int = 0) -> tuple[FastPolicy, StudyTask]:
    """The same of a task that need not be one of `RARE_TASKS`."""
    folder = BASES / base_name(task, base)
    model = AutoModelForCausalLM.from_pretrained(folder)
    policy = FastPolicy(model.eval(), AutoTokenizer.from_pretrained(folder), task.max_tokens)
    train, later, test = task.split()
    if draw:
        drawn = random.Random(draw).sample(task.kept_back(), len(train) + len(test))
        train, test = drawn[: len(train)], drawn[len(train) :]
    return policy, StudyTask(train, test, task.reward, later)


def base_name(task: RareTask, base: int) -> str:
    """Of the base's folder."""
    return f"{task.base}-{base}" if base else task.base
