"""How the trainer tells the loss which tokens are replayed, in the only channel verl offers:
``rollout_is_weights``.

A fresh token has its weight of rollout correction there, 1 without correction. Before mixing begins
the number is negative, -0.0 included. A token of a replayed trajectory, which has a ratio of its
own, is infinite.
"""

import math
from typing import NamedTuple

import torch
from omegaconf import DictConfig

ON_POLICY = -1.0  # before mixing begins: every token is fresh, with the clipped objective
FRESH = 1.0  # a fresh token of a mixed step
REPLAYED = math.inf  # a token of a replayed trajectory


class Codes(NamedTuple):
    """Of the fresh and the replayed tokens of a step."""

    fresh: float
    replayed: float


def codes(mixed: bool) -> Codes:
    """Those of a step that is mixed, or of one before mixing begins."""
    return Codes(FRESH if mixed else ON_POLICY, REPLAYED)


def corrects(correction: DictConfig) -> bool:
    """Whether verl computes weights of rollout correction, or rejects tokens by them."""
    return correction.rollout_is is not None or correction.rollout_rs is not None


def corrected(phase: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The codes [T] with the weights [T] of rollout correction at fresh tokens."""
    return torch.where(phase.isinf(), phase, torch.copysign(weights, phase))


def is_mixed(phase: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether mixing had begun, from codes and response mask [B, T]."""
    return bool((~phase.signbit() & mask.bool()).any())


def weights_of(phase: torch.Tensor) -> torch.Tensor:
    """The weights of rollout correction; 1 at replayed tokens."""
    return torch.where(phase.isinf(), 1.0, phase.abs())
