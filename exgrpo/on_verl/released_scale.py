"""The scale of the released update, on any number of GPUs.

The released run sums the token losses of each GPU's rows, divides by the longest response allowed
and averages over its 8 GPUs; ``clip_grad`` 1.0 and ``skip_grad_bound`` 500 belong to that scale.
Its entropy bonus is the mean over response tokens of each micro-batch, summed over micro-batches
and averaged over the 8 GPUs. Here both are sums over the whole mini-batch divided by 8, regardless
of the number of GPUs.

verl's ``seq-mean-token-sum-norm`` divides the sum of token losses by the number of rows of a
mini-batch and by ``actor.loss_scale_factor``, so that a factor of length * 8 / rows gives the
released sum.
"""

from __future__ import annotations

from omegaconf import DictConfig

RELEASED_GPUS = 8


def released_scale(response_length: int, rows: int) -> float:
    """The ``actor.loss_scale_factor`` with which verl's loss equals the released one.

    Args:
        response_length: longest response allowed, in tokens (``data.max_response_length``).
        rows: of a mini-batch over all GPUs (``ppo_mini_batch_size`` * ``rollout.n``).
    """
    scale = response_length * RELEASED_GPUS / rows
    return int(scale) if scale.is_integer() else scale


def of(*, _root_: DictConfig) -> float:
    """The resolver ``${exgrpo.released_scale:}``, of the keys above at the configuration's root."""
    actor_rollout = _root_.actor_rollout_ref
    rows = actor_rollout.actor.ppo_mini_batch_size * actor_rollout.rollout.n
    return released_scale(_root_.data.max_response_length, rows)
