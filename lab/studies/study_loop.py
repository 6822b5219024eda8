"""The minimal loop with what the studies add: budgets in tokens, several updates a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from minimal_loop import Loop, Policy, Rows, Task, accuracy, epochs, experience_of, update
from variants import Objective

from exgrpo import ExperienceConfig, ExperienceReplay
from exgrpo.loss_settings import LossSettings

Test = Callable[[Policy, Task], Mapping[str, float]]


@dataclass(frozen=True)
class StudyLoop(Loop):
    """Settings of the loop itself.

    Attributes:
        updates: a step's batch is dealt to so many updates, whole groups to each.
        reuse: epochs over a step's batch.
        tokens: the run ends with the step that generates the last of so many tokens, instead of after `steps`, and is
            tested `tests` times, evenly in tokens, instead of each `test_every` steps; 0: by steps.
    """

    updates: int = 1
    reuse: int = 1
    tokens: int = 0
    tests: int = 10


def test_accuracy(policy: Policy, task: Task) -> dict[str, float]:
    return {"test": accuracy(policy, task)}


def train(
    policy: Policy,
    task: Task,
    experience: ExperienceConfig,
    loss: LossSettings,
    loop: StudyLoop,
    objective: Objective,
    test: Test = test_accuracy,
) -> Iterator[dict[str, float]]:
    """`minimal_loop.train` with the studies' settings; with the defaults its numbers are the same.

    Args:
        test: measures of the policy by name.
    """
    torch.manual_seed(loop.seed)
    rng = np.random.default_rng(loop.seed)
    replay = ExperienceReplay(experience, task.train, rng=rng)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=loop.lr)
    progress = Progress(loop)
    questions = epochs(task.train, rng)
    yield {"step": 0, "generated": 0, **test(policy, task)}
    while not progress.over:
        step = progress.step + 1
        drawn = replay.draw(step, loop.questions, lambda: next(questions))
        rows, report = experience_of(policy, task, replay, drawn, step)
        for part in parts(rows, loop):
            value, metrics = objective(policy, part, replay, loss)
            update(policy, optimizer, value)
        due = progress.advance(int(report.pop("tokens")))
        measured = {"generated": progress.generated, **report, "ratio_mean": float(metrics["replayed_ratio_mean"])}
        yield {"step": step, **measured, **(test(policy, task) if due else {})}


class Progress:
    """How far a run is, in steps and generated tokens, and when it is tested."""

    def __init__(self, loop: StudyLoop) -> None:
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


def parts(rows: Rows, loop: StudyLoop) -> Iterator[Rows]:
    """What each update of a step trains on: whole groups, dealt in turn, epoch after epoch."""
    if loop.updates * loop.reuse == 1:
        yield rows
        return
    questions = list(dict.fromkeys(question for question, _ in rows.fresh))
    for number in [number for _ in range(loop.reuse) for number in range(loop.updates)]:
        mine = set(questions[number :: loop.updates])
        fresh = [row for row in rows.fresh if row[0] in mine]
        past = [row for row in rows.past if row[0] in mine]
        beside = rows.rehearsed[number :: loop.updates]
        part = Rows(fresh, past, rows.stored[number :: loop.updates], beside)
        if part.fresh or part.stored:
            yield part
