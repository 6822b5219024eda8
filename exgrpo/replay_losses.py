"""Losses of replayed rows that know the advantage's sign, by name: ``policy_loss.off_policy_loss``.

One signature: (log_ratio, log_prob, advantages, replayed, settings) -> token losses, float[B, T].
`log_ratio` is log w = log pi - log pi_past of each token, bounded, pi_past the policy that wrote the row;
`replayed` is bool[B, T], true at the tokens that count; sums over a row are over those. What other
entries hold is not used. [x] is x without its gradient. Needs torch alone.
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


REPLAY_LOSSES: OpenTable[ReplayLoss] = OpenTable(
    REPLAY_LOSS_PARAMETERS, {"clip": clip, "topr": topr}
)
