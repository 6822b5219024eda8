"""Objectives of the studies that the trainer has no key for, by name."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from minimal_loop import Policy, Rows, objective, rewards_of
from torch import Tensor

from exgrpo import ExperienceReplay, compute_grpo_loss
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.loss_settings import LossSettings

Array: TypeAlias = npt.NDArray[np.float64]
Objective = Callable[[Policy, Rows, ExperienceReplay, LossSettings], tuple[Tensor, Any]]


class Masked:
    """The paper's masked GRPO (section F.1, figure 1a): groups train by their share of right rows, the others do not.

    They count in the divisor.
    """

    def __init__(self, trains: Callable[[float], bool]) -> None:
        self._trains = trains

    def __call__(self, policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
        rewards = rewards_of(rows.fresh)
        kept = [row for row in rows.fresh if self._trains(float(np.mean(rewards[row[0]])))]
        value, metrics = objective(policy, rows._replace(fresh=kept or rows.fresh), replay, loss)
        return value * len(kept) / len(rows.fresh), metrics


def as_verls_users(policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
    """On-policy GRPO as verl's own examples set it: advantages by the standard deviation, the mean over tokens.

    Groups without an advantage are left out, as by its filter, but no others are asked in their place.
    """
    rewards = rewards_of(rows.fresh)
    lively = [row for row in rows.fresh if len(set(rewards[row[0]])) > 1] or rows.fresh
    now = policy.look(lively)
    batch = {
        "log_prob": now.log_prob,
        "old_log_prob": now.past,
        "response_mask": now.mask,
        "group": [question for question, _ in lively],
    }
    each = torch.tensor([rollout.reward for _, rollout in lively])
    value = compute_grpo_loss(batch, each, use_std=True, settings=loss)
    return value * now.mask.numel() / now.mask.sum(), value.metrics


class Past(NamedTuple):
    """What is known of the past groups that may be drawn, float [n] each."""

    failed: Array  # share of its question's latest fresh rollouts
    right: Array  # fresh rollouts of its question so far
    wrong: Array
    draws: Array  # how often its question was drawn
    since: Array  # steps since then; inf: it never was
    uses: Array  # how often the group itself was drawn
    age: Array  # steps since its rollouts


def _likeliest_half(past: Past, rng: np.random.Generator) -> Array:
    """Thompson sampling: a rate of success of each from its Beta posterior, the most uncertain outcome is drawn."""
    rate = rng.beta(1 + past.right, 1 + past.wrong)
    return _highest(rate * (1 - rate))


def _upper_bound(past: Past, rng: np.random.Generator) -> Array:
    """UCB1 over questions, worth the variance of their latest outcome, scaled to 0..1."""
    worth = 4 * past.failed * (1 - past.failed)
    return _highest(worth + np.sqrt(2 * np.log1p(past.draws.sum()) / (1 + past.draws)))


def _highest(values: Array) -> Array:
    return (values == values.max()).astype(float)


# rule -> weights [n] of past groups
DRAWN_BY: dict[str, Callable[[Past, np.random.Generator], Array]] = {
    "need": lambda past, rng: past.failed,
    "cooldown": lambda past, rng: (past.since > 5).astype(float),
    "ucb": _upper_bound,
    "beta": _likeliest_half,
    "four_uses": lambda past, rng: (past.uses < 4).astype(float),
    "youth": lambda past, rng: np.exp2(-past.age / 5),
}


class StoredBy:
    """As many past groups as fresh ones, drawn by a rule that sees visits, draws, uses and ages.

    The keys exp_unit=group and experience_ratio=0 keep them and draw none.

    Args:
        rule: of DRAWN_BY; where it weighs all groups with 0, no more are drawn.
    """

    def __init__(self, rule: str) -> None:
        self._rule = DRAWN_BY[rule]
        self._asked: dict[str, list[float]] = defaultdict(list)  # question -> rewards of its fresh rollouts
        self._latest: dict[str, float] = {}  # question -> share of its latest fresh rollouts that failed
        self._draws, self._uses = Counter[str](), Counter[tuple[str, int]]()
        self._drawn_at: dict[str, int] = {}
        self._step, self._chosen = -1, list[ReplayedGroup]()

    def __call__(self, policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
        step = rows.fresh[0][1].step
        if step != self._step:  # the first epoch over this step's batch
            rewards = rewards_of(rows.fresh)
            for question, mine in rewards.items():
                self._asked[question] += mine
                self._latest[question] = 1 - float(np.mean(mine))
            self._step, self._chosen = step, self._choose(replay, len(rewards), rewards)
        return objective(policy, rows._replace(stored=self._chosen), replay, loss)

    def _choose(self, replay: ExperienceReplay, count: int, barred: Container[str]) -> list[ReplayedGroup]:
        """So many groups of distinct questions, or all there are."""
        left = [group for group in replay.groups if group.question not in barred]
        chosen: list[StoredGroup] = []
        while len(chosen) < count and left:
            weights = self._rule(self._known(left), replay.rng)
            if not weights.any():
                break
            picked = left[replay.rng.choice(len(left), p=weights / weights.sum())]
            chosen.append(picked)
            left = [group for group in left if group.question != picked.question]
        for group in chosen:
            self._draws[group.question] += 1
            self._uses[group.question, group.step] += 1
            self._drawn_at[group.question] = self._step
        return [ReplayedGroup.whole(group) for group in chosen]

    def _known(self, groups: Sequence[StoredGroup]) -> Past:
        asked = [self._asked[group.question] for group in groups]
        columns = (
            [self._latest[group.question] for group in groups],
            [sum(rewards) for rewards in asked],
            [len(rewards) - sum(rewards) for rewards in asked],
            [self._draws[group.question] for group in groups],
            [self._step - self._drawn_at.get(group.question, -np.inf) for group in groups],
            [self._uses[group.question, group.step] for group in groups],
            [self._step - group.step for group in groups],
        )
        return Past(*(np.array(column, dtype=float) for column in columns))


class StoredOnce:
    """Of the epochs over a step's batch only the first has the step's past groups."""

    def __init__(self) -> None:
        self._step = -1

    def __call__(self, policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
        step = rows.fresh[0][1].step
        first, self._step = step != self._step, step
        return objective(policy, rows if first else rows._replace(stored=()), replay, loss)


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "as_published": lambda: objective,
    "only_hard": lambda: Masked(lambda share: 0 < share <= 0.25),
    "only_medium": lambda: Masked(lambda share: 0.25 < share < 0.75),
    "only_easy": lambda: Masked(lambda share: share >= 0.75),
    "as_verls_users": lambda: as_verls_users,
    **{f"stored_by_{rule}": functools.partial(StoredBy, rule) for rule in DRAWN_BY},
    "stored_once": StoredOnce,
}


def objective_of(settings: Mapping[str, str]) -> Objective:
    """What a study's own settings exchange; ValueError names one that is none."""
    name = settings.get("objective", "as_published")
    unknown = [key for key in settings if key != "objective"]
    if unknown or name not in OBJECTIVES:
        key = unknown[0] if unknown else "objective"
        raise ValueError(f"study.{key}={settings[key]}: must be study.objective={', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]()
