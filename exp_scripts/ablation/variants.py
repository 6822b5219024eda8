"""What differs from the method in one thing the trainer has no key for: pools and objectives, by name."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from minimal_loop import Parts, Rows, choose, objective
from minimal_policy import Policy
from torch import Tensor

from exgrpo import ExperienceConfig, ExperiencePool, Outcome, RolloutGroup, Trajectory, TrajectorySelector
from exgrpo.experience.question_id import question_id
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import mixed_token_losses

LONGEST = 16  # characters of a question of these tasks


class ByQuestion(ExperiencePool):
    """Files a question by something of its text, whatever its rollouts did: by its length, or by chance."""

    def __init__(self, config: ExperienceConfig, measure: str) -> None:
        super().__init__(config)
        self._measure = measure

    def observe(self, group: RolloutGroup) -> Outcome:
        outcome = super().observe(group)
        if group.question in self._buckets:
            self._buckets.put(group.question, self._bucket(group.question))
        return outcome

    def _bucket(self, question: str) -> int:
        eligible = self._config.eligible_buckets
        if self._measure == "question_length":  # the longest are the most difficult: the fewest successes
            return max(eligible[0], eligible[-1] - len(question) * len(eligible) // (LONGEST + 1))
        return random.Random(question_id(question)).choice(eligible)


class NeverRetiring(ExperiencePool):
    """A question that every rollout solved is filed under K successes, out of reach until a rollout fails again."""

    def observe(self, group: RolloutGroup) -> Outcome:
        complete = group.size + group.replayed == self._config.rollout_n
        if complete and group.solved == group.size:
            if group.question in self._buckets:
                self._buckets.put(group.question, self._config.rollout_n)
            return Outcome.SKIPPED
        return super().observe(group)


class Latest(ExperiencePool):
    """Of each question only the success that was recorded last is a candidate."""

    def candidates(self, question: str) -> tuple[Trajectory, ...]:
        return super().candidates(question)[-1:]


def split_advantages(
    policy: Policy, rows: Rows, experience: ExperienceConfig, loss: LossSettings
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Each row's advantage is over the mean of its group's fresh rows: the replayed reward moves no baseline."""
    solved: dict[str, list[float]] = defaultdict(list)
    for question, reward in zip(rows.asked, rows.rewards, strict=True):
        solved[question].append(reward)
    rewards = [*zip(rows.asked, rows.rewards, strict=True), *((question, 1.0) for question in rows.past)]
    advantages = torch.tensor([reward - sum(solved[q]) / len(solved[q]) for q, reward in rewards])
    now = policy.look([*zip(rows.asked, rows.rollouts, strict=True), *rows.past.items()])
    replayed = torch.arange(len(rewards)) >= len(rows.rollouts)
    spread = advantages[:, None].expand_as(now.log_prob)
    losses, metrics = mixed_token_losses(now.log_prob, now.past, spread, replayed, now.mask, loss)
    return losses.sum() / (len(rewards) * policy.max_tokens), metrics


def replay_where_failing(
    policy: Policy, rows: Rows, experience: ExperienceConfig, loss: LossSettings
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """A replayed trajectory joins its group only if at most half of the fresh rows are right."""
    share = {
        question: np.mean([r for q, r in zip(rows.asked, rows.rewards, strict=True) if q == question])
        for question in rows.past
    }
    kept = {question: one for question, one in rows.past.items() if share[question] <= 0.5}
    return objective(policy, rows._replace(past=kept), experience, loss)


class ExtraRows:
    """Beside the step's groups, 16 stored successes of other questions, for which nothing is generated.

    Their advantage is one less the success rate their question is filed under, their ratio is not shaped.
    """

    def __init__(self, pool: ExperiencePool, rows: int = 16) -> None:
        self._pool, self._rows, self._rng = pool, rows, np.random.default_rng(0)

    def __call__(
        self, policy: Policy, rows: Rows, experience: ExperienceConfig, loss: LossSettings
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        value, metrics = objective(policy, rows, experience, loss)
        drawn = self._pool.choose(self._rows, self._rng, exclude=frozenset(rows.asked))
        if not drawn:
            return value, metrics
        selector = TrajectorySelector(experience.exp_metric, experience.exp_select_mode)
        found = {question: self._pool.candidates(question) for question in drawn}
        now = policy.look(list(choose(policy, found, experience.exp_metric, selector, self._rng).items()))
        rates = [self._pool._buckets.place(question)[0] / experience.rollout_n for question in drawn]
        advantages = (1 - torch.tensor(rates))[:, None].expand_as(now.log_prob)
        plain = replace(loss, off_policy_reshape="no_reshape")
        all_replayed = torch.ones(len(drawn), dtype=torch.bool)
        losses, _ = mixed_token_losses(now.log_prob, now.past, advantages, all_replayed, now.mask, plain)
        count = len(rows.rollouts) + len(rows.past)
        return (value * count + losses.sum() / policy.max_tokens) / (count + len(drawn)), metrics


def parts_of(settings: Mapping[str, str], config: ExperienceConfig) -> Parts:
    """What a study's own settings exchange; ValueError names one that is none."""
    pools: dict[tuple[str, str], Callable[[], ExperiencePool]] = {
        ("difficulty", "question_length"): lambda: ByQuestion(config, "question_length"),
        ("difficulty", "random"): lambda: ByQuestion(config, "random"),
        ("retirement", "False"): lambda: NeverRetiring(config),
        ("candidates", "latest"): lambda: Latest(config),
    }
    objectives = {
        ("objective", "split_advantages"): lambda pool: split_advantages,
        ("objective", "replay_where_failing"): lambda pool: replay_where_failing,
        ("objective", "extra_rows"): ExtraRows,
    }
    parts = Parts(ExperiencePool(config))
    for setting in settings.items():
        if setting in pools:
            parts = replace(parts, pool=pools[setting]())
        elif setting in objectives:
            parts = replace(parts, objective=objectives[setting](parts.pool))
        else:
            known = ", ".join("=".join(pair) for pair in (*pools, *objectives))
            raise ValueError(f"study.{'='.join(setting)}: must be one of {known}")
    return parts
