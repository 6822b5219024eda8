"""Losses of replayed rows that know the advantage's sign, by name: ``policy_loss.off_policy_loss``.

One signature: (log_ratio, log_prob, advantages, replayed, settings) -> token losses, float[B, T].
`log_ratio` is log w = log pi - log mu of each token, bounded, mu the policy that wrote the row;
`replayed` is bool[B, T], true at the tokens that count; sums over a row are over those. What other
entries hold is not used. [.] is a stopped gradient. Needs torch alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from exgrpo.loss_settings import REPLAY_LOSS_PARAMETERS, LossSettings
from exgrpo.open_table import OpenTable

ReplayLoss = Callable[[Tensor, Tensor, Tensor, Tensor, LossSettings], Tensor]


def clip(
    log_ratio: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    replayed: Tensor,
    settings: LossSettings,
) -> Tensor:
    """PPO's, with the clip range of fresh tokens: -min(w A, clip(w, 1 - low, 1 + high) A)."""
    ratio = torch.exp(log_ratio)
    bounded = ratio.clamp(1 - settings.cliprange_low, 1 + settings.cliprange_high)
    return -torch.minimum(ratio * advantages, bounded * advantages)


def topr(
    log_ratio: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    replayed: Tensor,
    settings: LossSettings,
) -> Tensor:
    """Tapered off-policy REINFORCE (arXiv 2503.14286): -[rho] A log pi.

    rho is 1 where A > 0, so that a success teaches however unlikely it has become, and else the
    ratio of the whole row, min(1, prod_t w_t): a failure that is left behind teaches no more.
    """
    with torch.no_grad():
        row_log_ratio = torch.where(replayed, log_ratio, 0.0).sum(-1, keepdim=True)
        rho = torch.where(advantages > 0, 1.0, row_log_ratio.clamp(max=0.0).exp())
    return -rho * advantages * log_prob


def asymre(
    log_ratio: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    replayed: Tensor,
    settings: LossSettings,
) -> Tensor:
    """Asymmetric REINFORCE (arXiv 2506.20520): -(A - delta) log pi, without ratios.

    The baseline is the group's mean reward plus delta, off_policy_baseline_shift: below 0, a
    success weighs more.
    """
    return -(advantages - settings.off_policy_baseline_shift) * log_prob


def m2po(
    log_ratio: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    replayed: Tensor,
    settings: LossSettings,
) -> Tensor:
    """Second-moment trust region (arXiv 2510.01161): -w A of the tokens left, 0 of the others.

    The tokens with the largest (log w)^2 are left out, as few as bring the mean of (log w)^2 over
    the rest down to off_policy_m2_bound. Over the tokens of one call: in a trainer those of a
    micro-batch.
    """
    squares, order = log_ratio.detach()[replayed].square().double().sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
    within = int((means <= settings.off_policy_m2_bound).sum())  # the means rise
    left = torch.zeros_like(order, dtype=torch.bool)
    left[order[:within]] = True
    kept = replayed.clone()
    kept[replayed] = left
    return torch.where(kept, -torch.exp(log_ratio) * advantages, 0.0)


REPLAY_LOSSES: OpenTable[ReplayLoss] = OpenTable(
    REPLAY_LOSS_PARAMETERS, {"clip": clip, "topr": topr, "asymre": asymre, "m2po": m2po}
)
