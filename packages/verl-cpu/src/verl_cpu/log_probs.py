"""Log-probs of a micro-batch in a few operations, where verl has three for each token."""

from __future__ import annotations

import functools

import torch
from verl.utils import torch_functional

AT_A_TIME = 2**24  # logits, of which logsumexp makes a copy: 64 MB


def install() -> None:
    """Let verl's passes in this process take log-probs from here.

    verl, ``torch_functional.logprobs_from_logits_v2``, which it calls where it has no
    flash-attn, loops over the first dimension of the logits, meant to be the sequences; the FSDP
    engine gives it [tokens, vocabulary]. On a CPU that was a quarter of a small model's step.
    """
    of_verl = torch_functional.logprobs_from_logits_v2

    @functools.wraps(of_verl)
    def logprobs_from_logits_v2(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        exact = logits.dtype in (torch.float32, torch.float64)
        return log_probs_of(logits, labels) if exact else of_verl(logits, labels)

    torch_functional.logprobs_from_logits_v2 = logprobs_from_logits_v2


def log_probs_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probs (natural) of the labels under softmax(logits).

    Values and gradients are verl's to the bit. Above torch's 32,768 values a thread verl's own
    depend on the number of threads; these do not.

    Args:
        logits: [..., V], 32 or 64 bits.
        labels: [...], token ids.

    Returns:
        [...], of the logits' type.
    """
    rows = logits.flatten(end_dim=-2)
    chosen = rows.gather(-1, labels.reshape(-1, 1)).squeeze(-1)
    parts = rows.split(max(1, AT_A_TIME // logits.shape[-1]))
    return (chosen - torch.cat([torch.logsumexp(part, -1) for part in parts])).view(labels.shape)
