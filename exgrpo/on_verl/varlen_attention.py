"""Attention over packed rows by torch's own FlashAttention: nothing to compile, no flash-attn.

verl's FSDP engine packs a micro-batch into one row, ``[1, tokens]``, without a mask; in it a
sequence begins wherever ``position_ids`` are 0. torch 2.10 and newer carry FlashAttention 2 for
such rows, forward and backward (``torch.nn.attention.varlen``), for 16 bits on cards of compute
capability 8 and up.

Imported by ``actor_rollout_ref.model.external_lib`` in every process that loads the model, also
under plain verl; a run of exgrpo sets that key itself (:mod:`exgrpo.config.kernels`):

    actor_rollout_ref.model.external_lib=exgrpo.on_verl.varlen_attention
    actor_rollout_ref.model.override_config.attn_implementation=torch_varlen
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

from exgrpo.config.kernels import VARLEN

# torch 2.11 takes fewer key heads than query heads as it is, later ones want to be told
_TOLD_OF_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
_kernel: Callable[..., torch.Tensor] = varlen_attn  # a test on a CPU puts a stand-in here
_latest: tuple[Any, torch.Tensor, int] | None = None


def boundaries(position_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Where the sequences of a packed row begin and end, and the tokens of the longest.

    Kept for the row seen last, since each layer asks again and the answer waits for the device.

    Args:
        position_ids: [1, tokens], 0 at the begin of each sequence.

    Returns:
        int32 [sequences + 1], from 0 to tokens; and a count of tokens.
    """
    global _latest
    if _latest is not None and _latest[0]() is position_ids:
        return _latest[1], _latest[2]
    row = position_ids.flatten()
    begins = torch.nonzero(row == 0).flatten()
    ends = torch.cat([begins, begins.new_tensor([row.numel()])]).to(torch.int32)
    _latest = weakref.ref(position_ids), ends, int(ends.diff().max())
    return _latest[1], _latest[2]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    position_ids: torch.Tensor | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence of a packed row; transformers' interface.

    Args:
        query: [1, heads, tokens, d].
        key, value: [1, key heads, tokens, d]; the heads are a multiple of the key heads.
        sliding_window: a token sees itself and so many tokens less one before it; None: all.
        position_ids: [1, tokens].

    Returns:
        [1, tokens, heads, d], and no weights.

    Raises:
        ValueError: for padded rows, dropout, or a model that passes no position ids.
    """
    if attention_mask is not None or query.shape[0] != 1 or position_ids is None or dropout:
        raise ValueError(
            f"attn_implementation={VARLEN}: is for packed rows without dropout: "
            "actor_rollout_ref.model.use_remove_padding=True, or attn_implementation=sdpa"
        )
    ends, longest = boundaries(position_ids)
    packed = [each[0].transpose(0, 1) for each in (query, key, value)]  # [tokens, heads, d]
    device = query.device.type
    if query.dtype == torch.float32 and torch.is_autocast_enabled(device):
        packed = [each.to(torch.get_autocast_dtype(device)) for each in packed]
    out = _kernel(
        *(each.contiguous() for each in packed),
        ends,
        ends,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        **({"enable_gqa": True} if _TOLD_OF_GROUPS else {}),
    )
    return out.unsqueeze(0), None


AttentionInterface.register(VARLEN, attend)
AttentionMaskInterface.register(VARLEN, flash_attention_mask)  # which is None without padding
