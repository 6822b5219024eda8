"""Triton compiles verl's fused log-prob kernels at their first use: here, before the first step."""

from __future__ import annotations

from typing import Any

import torch

from exgrpo.config.kernels import TRITON_WIDTH

# Triton compiles a kernel anew for counts that 16 divides
TOKENS = (16, 17)


def compile_log_prob_kernels(model_config: Any, dtype: torch.dtype, device: str) -> None:
    """Forward and backward of a few tokens, if the model takes its log-probs by these kernels.

    Kernels depend on the width of the model and on its vocabulary, so these are the real ones: for
    a moment this takes the memory of two output heads.

    Args:
        model_config: verl's HFModelConfig.
        dtype: of the parameters in the forward pass.

    Raises:
        ValueError: the model's width does not fit, which is seen before only of a local folder.
    """
    backend = (model_config.fused_kernel_options or {}).get("impl_backend")
    if not model_config.use_fused_kernels or backend != "triton" or device == "cpu":
        return
    text = model_config.hf_config.get_text_config()
    width, words = text.hidden_size, text.vocab_size
    if width % TRITON_WIDTH:
        raise ValueError(
            f"exgrpo: actor_rollout_ref.model.fused_kernel_options.impl_backend=triton: needs a "
            f"hidden_size that {TRITON_WIDTH} divides, the model's is {width}; torch takes any"
        )
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    head = torch.zeros(words, width, dtype=dtype, device=device, requires_grad=True)
    for tokens in TOKENS:
        hidden = torch.zeros(1, tokens, width, dtype=dtype, device=device, requires_grad=True)
        labels = torch.zeros(1, tokens, dtype=torch.long, device=device)
        log_probs, entropy = linear_cross_entropy(hidden, head, labels, 1.0, "none")
        ones = torch.ones_like(log_probs)  # whole: the kernels refuse an expanded gradient
        torch.autograd.backward([log_probs, entropy], [ones, ones])
