"""Log-probs of a micro-batch in a few operations, where verl without flash-attn has three for each token."""

from __future__ import annotations

import functools
from typing import Any

import torch
from verl.utils import torch_functional

AT_A_TIME = 2**24  # logits, of which a copy in 32 bits is made: 64 MB


def install() -> None:
    """Let verl's passes in this process, if they have no flash-attn, take log-probs from here.

    verl 0.9.1, ``torch_functional.logprobs_from_logits_v2``: it loops over the first dimension of the logits, meant to
    be the sequences; the FSDP engine gives it [tokens, vocabulary]. On a CPU that was a quarter of a quickstart's step.
    On a GPU it is hundred thousand kernels for 32,768 tokens, and it keeps all log-probs in 32 bits: 20 GB at a
    vocabulary of 152,064.
    """
    of_verl = torch_functional.logprobs_from_logits_v2
    if hasattr(of_verl, "__wrapped__"):
        return

    @functools.wraps(of_verl)
    def logprobs_from_logits_v2(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if logits.dtype in (torch.float32, torch.float64):
            return log_probs_of(logits, labels)
        if logits.is_cuda:
            return log_probs_of_16_bits(logits, labels)
        return of_verl(logits, labels)

    torch_functional.logprobs_from_logits_v2 = logprobs_from_logits_v2


def log_probs_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probs (natural) of the labels under softmax(logits); values and gradients are verl's to the bit.

    Above torch's 32,768 values a thread verl's own depend on the number of threads; these do not.

    Args:
        logits: [..., V], 32 or 64 bits.
        labels: [...], token ids.

    Returns:
        [...], of the logits' type.
    """
    rows = logits.flatten(end_dim=-2)
    chosen = rows.gather(-1, labels.reshape(-1, 1)).squeeze(-1)
    parts = rows.split(_rows_at_a_time(logits))
    return (chosen - torch.cat([torch.logsumexp(part, -1) for part in parts])).view(labels.shape)


def log_probs_of_16_bits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same of logits [..., V] in 16 bits, computed and returned in 32, as under verl's autocast.

    Beside the logits only their gradient, in their type, needs memory of that size.
    """
    values: torch.Tensor = _In32Bits.apply(logits.flatten(end_dim=-2), labels.reshape(-1))
    return values.view(labels.shape)


class _In32Bits(torch.autograd.Function):
    """log softmax(logits)[label] of [N, V] and [N]; what backward needs in 32 bits is made again, part by part."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        normalisers = torch.cat([part.float().logsumexp(-1) for part in logits.split(_rows_at_a_time(logits))])
        ctx.save_for_backward(logits, labels, normalisers)
        return logits.gather(-1, labels[:, None]).squeeze(-1).float() - normalisers

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, labels, normalisers = ctx.saved_tensors
        of_logits = torch.empty_like(logits)
        inputs = (logits, labels[:, None], normalisers[:, None], gradients[0].float()[:, None], of_logits)
        parts = zip(*(each.split(_rows_at_a_time(logits)) for each in inputs), strict=True)
        for logit, label, normaliser, gradient, result in parts:
            by_logit = (logit.float() - normaliser).exp_().mul_(-gradient)  # -p(v) for each v, 1 more at the label
            result.copy_(by_logit.scatter_add_(-1, label, gradient))
        return of_logits, None


def _rows_at_a_time(logits: torch.Tensor) -> int:
    return max(1, AT_A_TIME // logits.shape[-1])
