"""GRPO's advantages over the rewards of groups, for loops without verl; in training verl computes
them (``algorithm.adv_estimator``). Requires torch only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from exgrpo.refusal import refuse_as

GROUP_EPSILON = 1e-6  # added to a group's standard deviation, as verl does


def group_advantages(
    rewards: Tensor, group: Tensor | Sequence[Hashable], use_std: bool = False
) -> Tensor:
    """GRPO's A_i = r_i - mean of its group, including the replayed row (Dr. GRPO, as in the paper).

    A group of one row has no baseline: its advantage is its reward, as in verl.

    Args:
        rewards: [B].
        group: [B], equal for the rows of one question: a tensor or any hashable values.
        use_std: divide by the group's standard deviation (unbiased) + 1e-6, as GRPO.

    Returns:
        float[B].

    Raises:
        ValueError: lengths differ, or a reward is not finite.
    """
    keys = group.tolist() if isinstance(group, Tensor) else list(group)
    if rewards.dim() != 1 or len(keys) != len(rewards):
        given = f"group has {len(keys)} entries for rewards of shape {tuple(rewards.shape)}"
        raise ValueError(f"{given}: must be as many")
    rewards = rewards if rewards.is_floating_point() else rewards.float()
    if not bool(rewards.isfinite().all()):
        refuse_as(f"rewards[{int((~rewards.isfinite()).nonzero()[0])}]", "be a finite number")
    number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    index = torch.tensor([number[key] for key in keys], dtype=torch.long, device=rewards.device)

    def total(values: Tensor) -> Tensor:
        return values.new_zeros(len(number)).index_add_(0, index, values)

    counts = total(torch.ones_like(rewards))
    alone = counts == 1
    advantages = rewards - (total(rewards) / counts).masked_fill(alone, 0.0)[index]
    if not use_std:
        return advantages
    variance = total(advantages.square()) / (counts - 1).clamp(min=1)
    return advantages / (variance.sqrt().masked_fill(alone, 1.0)[index] + GROUP_EPSILON)
