"""Rules of the studies, for the trainer's keys: pkg://study_rules:name."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from exgrpo import RolloutGroup
from exgrpo.experience.question_id import question_id
from exgrpo.loss_settings import LossSettings

LONGEST, LONGEST_ANSWER = 16, 48  # characters of a question of these tasks, tokens of an answer


def question_length(groups: Sequence[RolloutGroup], rollout_n: int) -> list[int]:
    """Difficulty by the text, whatever its rollouts did: the longest questions are filed under the fewest successes."""
    most = rollout_n - 1
    return [max(1, most - len(group.question) * most // (LONGEST + 1)) for group in groups]


def token_count(groups: Sequence[RolloutGroup], rollout_n: int) -> list[int]:
    """Difficulty by the answers: questions whose right ones take most tokens are filed under the fewest successes."""
    most, found = rollout_n - 1, []
    for group in groups:
        tokens = sum(map(len, group.successes)) / max(len(group.successes), 1)
        found.append(max(1, most - int(tokens) * most // (LONGEST_ANSWER + 1)))
    return found


def by_chance(groups: Sequence[RolloutGroup], rollout_n: int) -> list[int]:
    """Difficulty that says nothing: for each question one of 1..K-1, always the same."""
    return [random.Random(question_id(group.question)).choice(range(1, rollout_n)) for group in groups]


def phantom(
    log_ratio: Tensor, log_prob: Tensor, advantages: Tensor, replayed: Tensor, settings: LossSettings
) -> Tensor:
    """A replayed row counts in its group's mean reward and teaches nothing itself."""
    return 0.0 * log_prob


def fading(log_ratio: Tensor, log_prob: Tensor, advantages: Tensor, replayed: Tensor, settings: LossSettings) -> Tensor:
    """TOPR, but a success weighs 1 - p, p the probability of the whole row today: what is learnt teaches no more."""
    with torch.no_grad():
        row_log_ratio, row_log_prob = (
            torch.where(replayed, each, 0.0).sum(-1, keepdim=True) for each in (log_ratio, log_prob)
        )
        rho = torch.where(advantages > 0, -torch.expm1(row_log_prob), row_log_ratio.clamp(max=0.0).exp())
    return -rho * advantages * log_prob
