"""Objectives of the studies that the trainer has no key for, by name."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np
import torch
from minimal_loop import Policy, Rows, objective, rewards_of
from torch import Tensor

from exgrpo import ExperienceReplay, compute_grpo_loss
from exgrpo.experience.replay_log import ReplayedGroup
from exgrpo.loss_settings import LossSettings

Objective = Callable[[Policy, Rows, ExperienceReplay, LossSettings], tuple[Tensor, Any]]


class Masked:
    """The paper's masked GRPO (section 2.2, figure 1a): groups train by their share of right rows, the others do not.

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


class StoredByNeed:
    """As many past groups as fresh ones, drawn by the share of their question's latest fresh rollouts that failed.

    The keys exp_unit=group and experience_ratio=0 keep them and draw none.
    """

    def __init__(self) -> None:
        self._failed: dict[str, float] = {}  # question -> share of its latest fresh rollouts
        self._step, self._chosen = -1, list[ReplayedGroup]()

    def __call__(self, policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
        step = rows.fresh[0][1].step
        if step != self._step:  # the first epoch over this step's batch
            rewards = rewards_of(rows.fresh)
            self._failed |= {question: 1 - float(np.mean(mine)) for question, mine in rewards.items()}
            self._step, self._chosen = step, self._choose(replay, len(rewards), rewards)
        return objective(policy, rows._replace(stored=self._chosen), replay, loss)

    def _choose(self, replay: ExperienceReplay, count: int, barred: Container[str]) -> list[ReplayedGroup]:
        """So many groups of distinct questions, or all there are."""
        left = [group for group in replay.groups if group.question not in barred]
        chosen: list[ReplayedGroup] = []
        while len(chosen) < count and left:
            weights = np.array([self._failed[group.question] for group in left])
            if not weights.any():
                break
            picked = left[replay.rng.choice(len(left), p=weights / weights.sum())]
            chosen.append(ReplayedGroup.whole(picked))
            left = [group for group in left if group.question != picked.question]
        return chosen


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
    "stored_by_need": StoredByNeed,
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
