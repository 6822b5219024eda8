"""Objectives of the studies that the trainer has no key for, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from minimal_loop import Policy, Rows, objective
from torch import Tensor

from exgrpo import ExperienceReplay
from exgrpo.loss_settings import LossSettings

Objective = Callable[[Policy, Rows, ExperienceReplay, LossSettings], tuple[Tensor, Any]]


class Masked:
    """The paper's masked GRPO (section 2.2, figure 1a): groups train by their share of right rows, the others do not.

    They count in the divisor.
    """

    def __init__(self, trains: Callable[[float], bool]) -> None:
        self._trains = trains

    def __call__(self, policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
        rewards: dict[str, list[float]] = defaultdict(list)
        for question, rollout in rows.fresh:
            rewards[question].append(rollout.reward)
        kept = [row for row in rows.fresh if self._trains(float(np.mean(rewards[row[0]])))]
        value, metrics = objective(policy, rows._replace(fresh=kept or rows.fresh), replay, loss)
        return value * len(kept) / len(rows.fresh), metrics


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "as_published": lambda: objective,
    "only_hard": lambda: Masked(lambda share: 0 < share <= 0.25),
    "only_medium": lambda: Masked(lambda share: 0.25 < share < 0.75),
    "only_easy": lambda: Masked(lambda share: share >= 0.75),
}


def objective_of(settings: Mapping[str, str]) -> Objective:
    """What a study's own settings exchange; ValueError names one that is none."""
    name = settings.get("objective", "as_published")
    unknown = [key for key in settings if key != "objective"]
    if unknown or name not in OBJECTIVES:
        key = unknown[0] if unknown else "objective"
        raise ValueError(f"study.{key}={settings[key]}: must be study.objective={', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]()
