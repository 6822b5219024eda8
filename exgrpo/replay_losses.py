"""Losses of replayed rows that know the advantage's sign, by name: ``policy_loss.off_policy_loss``.

One signature: (log_ratio, log_prob, advantages, replayed, settings) -> token losses, float[B, T].
`log_ratio` is log w = log pi - log pi_past of each token, bounded; pi_past wrote the row.
`replayed` is bool[B, T], true at the tokens that count; sums over a row are over those. What other
entries hold is not used. [x] is x without its gradient. A loss of yours may take a sixth argument,
``rows`` (:class:`ReplayRows`). Needs torch alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from exgrpo.loss_settings import (
    LIKELIHOOD,
    REPLAY_LOSS_PARAMETERS,
    REPLAY_LOSS_ROWS,
    SHAPED,
    LossSettings,
)
from exgrpo.open_table import OpenTable

ReplayLoss = Callable[..., Tensor]  # see above


class ReplayRows(NamedTuple):
    """What the trainer knows of each row beside its tokens; of fresh rows any number.

    Attributes:
        age: int64 [B, 1], steps since it was generated, 2,047 for more.
        group: int64 [B, 1], equal for the rows of one replayed group of a batch, 0 to 4,095.
    """

    age: Tensor
    group: Tensor


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


def likelihood(
    log_ratio: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    replayed: Tensor,
    settings: LossSettings,
) -> Tensor:
    """Rehearsal (Re:Dr, remax-rl 0.1.1): -log pi / |o|, whatever the advantage and the author.

    A row's tokens sum to its mean -log pi. Whoever aggregates gives it a term of its own, weighed
    by `likelihood_weight`.
    """
    return -log_prob / replayed.sum(-1, keepdim=True).clamp(min=1)


REPLAY_LOSSES: OpenTable[ReplayLoss] = OpenTable(
    REPLAY_LOSS_PARAMETERS,
    {"clip": clip, "topr": topr, LIKELIHOOD: likelihood},
    REPLAY_LOSS_ROWS,
)


def takes_rows(name: str) -> bool:
    """Whether `policy_loss.off_policy_loss=name` is a loss that asks for `rows`."""
    if name in (SHAPED, *REPLAY_LOSSES.names):
        return False
    return REPLAY_LOSSES.takes_more(REPLAY_LOSSES.load("policy_loss.off_policy_loss", name))
