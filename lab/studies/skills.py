"""The tasks of the studies, and their base models: what makes room for reinforcement learning to learn something.

``sum``: add three to eight digits. ``mod``: the remainder by 7 of a number of three to eight digits. Questions differ
in difficulty by their length. A base model is taught the skill first, each step written out, and then mostly to blurt
out an answer: it is right on 10 to 30 % of the questions, by care or by luck, and the reward cannot tell which.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import study_folders
import torch
from make_base import build_model, build_tokenizer, fit
from minimal_loop import Policy, Task
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2ForCausalLM

TRAIN, TEST, HELD_BACK = 256, 512, 4608
BASES = study_folders.BASES
BATCH = 64


class Phase(NamedTuple):
    """Supervised training: updates, share of examples that are careful, peak learning rate."""

    updates: int
    careful: float
    lr: float


@dataclass(frozen=True)
class Skill:
    """A task and how its base model came to be.

    Attributes:
        question: draws one.
        steps: the partial results a careful answer writes, and the answer.
        guess: an answer without thought.
        layers, width: of the base, a Qwen2.
        phases: of its training, one after the other.
        max_tokens: longest response.
    """

    name: str
    question: Callable[[random.Random], str]
    steps: Callable[[str], tuple[list[str], str]]
    guess: Callable[[str, random.Random], str]
    layers: int
    width: int
    phases: tuple[Phase, ...]
    max_tokens: int

    def answer(self, question: str) -> str:
        return self.steps(question)[1]

    def careful(self, question: str) -> str:
        steps, result = self.steps(question)
        return "".join(f"{step};" for step in steps) + box(result)

    def careless(self, question: str, rng: random.Random) -> str:
        return box(self.guess(question, rng))

    def held_back(self) -> list[str]:
        """Distinct questions the base model never saw, always the same."""
        rng = random.Random(2510)
        questions: dict[str, None] = {}
        while len(questions) < HELD_BACK:
            questions[self.question(rng)] = None
        return list(questions)

    def split(self) -> tuple[list[str], list[str]]:
        """Training and test questions: disjoint, both held back from the base model."""
        questions = self.held_back()
        return questions[TEST : TEST + TRAIN], questions[:TEST]

    def reward(self, question: str, reply: str) -> float:
        return float(reply.endswith(box(self.answer(question))))


def box(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def _sum_steps(question: str) -> tuple[list[str], str]:
    terms = [int(term) for term in question.split("+")]
    total, steps = terms[0], []
    for term in terms[1:]:
        steps.append(f"{total}+{term}={total + term}")
        total += term
    return steps, str(total)


def _mod_steps(question: str) -> tuple[list[str], str]:
    rest, steps = 0, []
    for digit in question:
        steps.append(f"{rest}{digit}={(10 * rest + int(digit)) % 7}")
        rest = (10 * rest + int(digit)) % 7
    return steps, str(rest)


def _digits(rng: random.Random) -> list[str]:
    return [str(rng.randint(0, 9)) for _ in range(rng.randint(3, 8))]


SKILLS = {
    skill.name: skill
    for skill in (
        Skill(
            name="sum",
            question=lambda rng: "+".join(_digits(rng)),
            steps=_sum_steps,
            guess=lambda question, rng: str(max(0, int(_sum_steps(question)[1]) + rng.randint(-4, 4))),
            layers=2,
            width=64,
            phases=(Phase(2200, 0.9, 4e-3), Phase(150, 0.1, 1e-3)),
            max_tokens=64,
        ),
        Skill(
            name="mod",
            question=lambda rng: "".join(_digits(rng)),
            steps=_mod_steps,
            guess=lambda question, rng: str(rng.randint(0, 6)),
            layers=2,
            width=64,
            phases=(Phase(2200, 0.9, 4e-3), Phase(150, 0.1, 1e-3)),
            max_tokens=56,
        ),
    )
}


def make(skill: Skill, folder: Path, seed: int = 0) -> None:
    """Train the base model of a skill, and save it."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    barred = set(skill.held_back())
    tokenizer = build_tokenizer(folder)
    model = build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, skill.layers, skill.width)
    for phase in skill.phases:
        print(f"{skill.name}: {phase}", flush=True)
        teach(model, tokenizer, skill, phase, barred, rng)
    model.save_pretrained(folder)


class Lessons(Protocol):
    """What a base model is taught: questions, and the two kinds of answers."""

    def question(self, rng: random.Random, /) -> str: ...
    def careful(self, question: str, /) -> str: ...
    def careless(self, question: str, rng: random.Random, /) -> str: ...


def teach(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    skill: Lessons,
    phase: Phase,
    barred: Container[str],
    rng: random.Random,
) -> None:
    """Supervised training of one phase, on questions that are not barred."""

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        rows: list[torch.Tensor] = []
        labels: list[torch.Tensor] = []
        while len(rows) < BATCH:
            question = skill.question(rng)
            if question in barred:
                continue
            text = skill.careful(question) if rng.random() < phase.careful else skill.careless(question, rng)
            prompt = tokenizer.encode(question + "\n")
            reply = tokenizer.encode(text) + [tokenizer.eos_token_id]
            rows.append(torch.tensor(prompt + reply))
            labels.append(torch.tensor([-100] * len(prompt) + reply))
        return pad_sequence(rows, True, tokenizer.pad_token_id), pad_sequence(labels, True, -100)

    fit(model, draw, phase.updates, phase.lr)


def base(name: str, command: str) -> Path:
    """The folder of a base model; SystemExit with the command of lab/studies/ that makes it, if it is not there."""
    folder = BASES / name
    if not (folder / "model.safetensors").exists():
        sys.exit(f"{folder}: no base model; first run python lab/studies/{command}")
    return folder


def load(name: str) -> tuple[Policy, Task]:
    """The base model of a task and its questions."""
    skill, folder = SKILLS[name], base(name, f"make_study_bases.py {name}")
    model = AutoModelForCausalLM.from_pretrained(folder)
    policy = Policy(model.eval(), AutoTokenizer.from_pretrained(folder), skill.max_tokens)
    train, test = skill.split()
    return policy, Task(train, test, skill.reward)


def facts(name: str) -> dict[str, float]:
    """What the base does on the test questions: accuracy, share of careful answers, accuracy of either kind."""
    policy, task = load(name)
    torch.manual_seed(0)
    questions = list(task.test) * 4
    replies = [policy.decode(one) for one in policy.sample(questions, 0)]
    right = [task.reward(question, reply) for question, reply in zip(questions, replies, strict=True)]
    careful = [r for r, reply in zip(right, replies, strict=True) if ";" in reply]
    careless = [r for r, reply in zip(right, replies, strict=True) if ";" not in reply]
    return {
        "accuracy": sum(right) / len(right),
        "careful": len(careful) / len(right),
        "right_when_careful": sum(careful) / max(len(careful), 1),
        "right_when_careless": sum(careless) / max(len(careless), 1),
    }
