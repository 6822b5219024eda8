"""How long a loop runs, which questions it deals, and how a step's rows are dealt to its updates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from exgrpo import Trajectory
from exgrpo.experience.group_buffer import StoredGroup


class Rows(NamedTuple):
    """A step: what was asked, generated and rewarded, row by row; question -> the trajectory that joins its group;
    and past groups, for which nothing was generated."""

    asked: Sequence[str]
    rollouts: Sequence[Trajectory]
    rewards: Sequence[float]
    past: Mapping[str, Trajectory]
    stored: Sequence[StoredGroup] = ()


@dataclass(frozen=True)
class Task:
    """Questions, each a prompt, and the verifiable reward of a response to one: 0 or 1.

    Attributes:
        later: questions that are asked instead of `train` after a third of the run; none: `train` all along.
    """

    train: Sequence[str]
    test: Sequence[str]
    reward: Callable[[str, str], float]
    later: Sequence[str] = ()


@dataclass(frozen=True)
class Loop:
    """Settings of the loop itself: questions a step, rollouts a question.

    Attributes:
        updates: a step's batch is dealt to so many updates, whole groups to each.
        reuse: epochs over a step's batch.
        tokens: the run ends with the step that generates the last of so many tokens, instead of after `steps`, and is
            tested `tests` times, evenly in tokens, instead of each `test_every` steps; 0: by steps.
    """

    steps: int = 60
    questions: int = 16
    rollout_n: int = 8
    lr: float = 1e-4
    updates: int = 1
    reuse: int = 1
    test_every: int = 10
    tokens: int = 0
    tests: int = 10
    seed: int = 0


class Progress:
    """How far a run is, in steps and generated tokens, and when it is tested."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self.step, self.generated = loop, 0, 0

    @property
    def share(self) -> float:
        """Of the run that is done."""
        return self.generated / self._loop.tokens if self._loop.tokens else self.step / self._loop.steps

    @property
    def over(self) -> bool:
        return self.share >= 1

    def advance(self, tokens: int) -> bool:
        """A step is done; returns whether a test is due."""
        loop, before = self._loop, self.share
        self.step, self.generated = self.step + 1, self.generated + tokens
        if loop.tokens:
            return self.over or int(self.share * loop.tests) > int(before * loop.tests)
        return self.step % loop.test_every == 0 or self.over


def deal(task: Task, rng: np.random.Generator, progress: Progress) -> Iterator[tuple[str, bool]]:
    """The training questions epoch after epoch; after a third of the run the later ones, if there are any."""
    for question in epochs(task.train, rng):
        if task.later and progress.share >= 1 / 3:
            break
        yield question
    yield from epochs(task.later, rng)


def epochs(train: Sequence[str], rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    """The questions epoch after epoch, shuffled, and whether an epoch other than the first begins with one."""
    for epoch in range(sys.maxsize):
        for position, question in enumerate(rng.permutation(train).tolist()):
            yield question, epoch > 0 and position == 0


def parts(rows: Rows, loop: Loop) -> Iterator[Rows]:
    """What each update of a step trains on: whole groups, dealt in turn, epoch after epoch."""
    if loop.updates * loop.reuse == 1:
        yield rows
        return
    questions = list(dict.fromkeys(rows.asked))
    for number in [number for _ in range(loop.reuse) for number in range(loop.updates)]:
        mine = set(questions[number :: loop.updates])
        kept = [row for row, question in enumerate(rows.asked) if question in mine]
        past = {question: trajectory for question, trajectory in rows.past.items() if question in mine}
        asked, rollouts = [rows.asked[row] for row in kept], [rows.rollouts[row] for row in kept]
        rewards = [rows.rewards[row] for row in kept]
        part = Rows(asked, rollouts, rewards, past, rows.stored[number :: loop.updates])
        if part.asked or part.stored:
            yield part
