"""Rules of the studies for two of the trainer's keys, by reference: lab/rules.py:NAME.

Of (groups, rollout_n) for `trainer.exp_difficulty`; the others for `policy_loss.off_policy_loss`, whose arguments are
those of exgrpo/replay_losses.py. `fresh`, `asymre` and `m2po` were rules by name until 0.3.0.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from exgrpo import RolloutGroup
from exgrpo.experience.question_id import question_id
from exgrpo.experience.rules import difficulty
from exgrpo.loss_settings import LossSettings

LONGEST, LONGEST_ANSWER = 16, 48  # characters of a question of these tasks, tokens of an answer
BASELINE_SHIFT = -0.1  # of asymre: what is added to the group's mean reward
M2_BOUND = 0.04  # of m2po: greatest mean squared log-ratio of the tokens that are left


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


@difficulty(bounded_rewards=True)
def fresh(groups: Sequence[RolloutGroup], rollout_n: int) -> list[int]:
    """Difficulty by the share of successes among the fresh rollouts, as a count out of K, rounded half to even.

    What the name did beside it no reference does: it also moved questions to buckets that are not collected, where
    they are not drawn.
    """
    return [round(group.solved * rollout_n / group.size) for group in groups]


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


def asymre(log_ratio: Tensor, log_prob: Tensor, advantages: Tensor, replayed: Tensor, settings: LossSettings) -> Tensor:
    """Asymmetric REINFORCE (arXiv 2506.20520): -(A - delta) log pi, without ratios.

    The baseline is the group's mean reward plus delta, BASELINE_SHIFT: below 0, a success weighs more.
    """
    return -(advantages - BASELINE_SHIFT) * log_prob


def m2po(log_ratio: Tensor, log_prob: Tensor, advantages: Tensor, replayed: Tensor, settings: LossSettings) -> Tensor:
    """Second-moment trust region (arXiv 2510.01161): -w A of the tokens left, 0 of the others.

    The tokens with the largest (log w)^2 are left out, as few as bring the mean of (log w)^2 over the rest down to
    M2_BOUND. Over the tokens of one call: in a trainer those of a micro-batch.
    """
    squares, order = log_ratio.detach()[replayed].square().double().sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
    within = int((means <= M2_BOUND).sum())  # the means rise
    left = torch.zeros_like(order, dtype=torch.bool)
    left[order[:within]] = True
    kept = replayed.clone()
    kept[replayed] = left
    return torch.where(kept, -torch.exp(log_ratio) * advantages, 0.0)
