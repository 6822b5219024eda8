"""Objectives of the studies that the trainer has no key for, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from minimal_loop import Policy, Rows, objective
from torch import Tensor

from exgrpo import ExperienceReplay
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import mixed_token_losses

Objective = Callable[[Policy, Rows, ExperienceReplay, LossSettings], tuple[Tensor, Any]]


def split_advantages(policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
    """Each row's advantage is over the mean of its group's fresh rows: the replayed reward moves no baseline."""
    solved: dict[str, list[float]] = defaultdict(list)
    for question, rollout in rows.fresh:
        solved[question].append(rollout.reward)
    every = [*rows.fresh, *rows.past]
    advantages = torch.tensor([rollout.reward - sum(solved[q]) / len(solved[q]) for q, rollout in every])
    now = policy.look(every)
    replayed = torch.arange(len(every)) >= len(rows.fresh)
    spread = advantages[:, None].expand_as(now.log_prob)
    losses, metrics = mixed_token_losses(now.log_prob, now.past, spread, replayed, now.mask, loss)
    return losses.sum() / (len(every) * policy.max_tokens), metrics


def replay_where_failing(
    policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings
) -> tuple[Tensor, Any]:
    """A replayed trajectory joins its group only if at most half of the fresh rows are right."""

    def share(question: str) -> float:
        return float(np.mean([rollout.reward for other, rollout in rows.fresh if other == question]))

    kept = [(question, trajectory) for question, trajectory in rows.past if share(question) <= 0.5]
    return objective(policy, rows._replace(past=kept), replay, loss)


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


class ExtraRows:
    """Beside the step's groups, 16 stored successes of other questions, for which nothing is generated.

    Their advantage is one less the success rate their question is filed under, their ratio is not shaped.
    """

    def __init__(self, rows: int = 16) -> None:
        self._rows, self._rng = rows, np.random.default_rng(0)

    def __call__(self, policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
        value, metrics = objective(policy, rows, replay, loss)
        drawn = replay.pool.choose(self._rows, self._rng, exclude=frozenset(question for question, _ in rows.fresh))
        if not drawn:
            return value, metrics
        chosen = replay.choose(replay.candidates(drawn), policy.views).trajectories
        now = policy.look(list(chosen.items()))
        rates = [replay.pool.bucket(question) / replay.config.rollout_n for question in chosen]
        advantages = (1 - torch.tensor(rates))[:, None].expand_as(now.log_prob)
        plain = replace(loss, off_policy_reshape="no_reshape")
        all_replayed = torch.ones(len(chosen), dtype=torch.bool)
        losses, _ = mixed_token_losses(now.log_prob, now.past, advantages, all_replayed, now.mask, plain)
        count = len(rows.fresh) + len(rows.past)
        return (value * count + losses.sum() / policy.max_tokens) / (count + len(chosen)), metrics


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "as_published": lambda: objective,
    "split_advantages": lambda: split_advantages,
    "replay_where_failing": lambda: replay_where_failing,
    "extra_rows": ExtraRows,
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
