"""Which attention and which log-prob kernels the actor takes: by what is installed, by the card.

The configuration asks through ``${exgrpo.attention:}``, ``${exgrpo.fused:}`` and
``${exgrpo.fused_backend:}``; a value of the user's stands in their place. Without flash-attn, which
only a compiler can install, attention over packed rows is torch's own and log-probs come from
verl's fused kernels: verl's loop over tokens is 34 times slower and coarser, since it takes
log-probs in 16 bits (benchmarks/gpu/h200.md).
"""

from __future__ import annotations

import functools
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

VARLEN = "torch_varlen"
VARLEN_MODULE = "exgrpo.on_verl.varlen_attention"
VARLEN_TORCH = (2, 10)
MODEL = "actor_rollout_ref.model"
ATTENTION = f"{MODEL}.override_config.attn_implementation"
# name of an attention -> the package it needs; a name with "/" is one of the hub's kernels
ATTENTIONS = {
    "flash_attention_2": "flash-attn",
    "flash_attention_3": "flash-attn-3",
    "flash_attention_4": "flash-attn-4",
    VARLEN: "torch",
    "sdpa": "torch",
    "flex_attention": "torch",
    "eager": "torch",
}
# compute capability that each needs; sdpa and eager run everywhere
CAPABILITY = {"flash_attention_2": 8, "flash_attention_3": 9, "flash_attention_4": 9, VARLEN: 8}
VERLS = "flash_attention_2"  # where nothing is given, as with method=replay_only
TRITON_WIDTH = 128  # verl's kernels take only widths that it divides: SmolLM2-135M has 576
_SIXTEEN_BITS = ("bf16", "bfloat16", "fp16", "float16")


def installed(distribution: str) -> bool:
    """Whether a package is there by its own name: flash-attn-4 brings a module flash_attn, too."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def torch_version() -> tuple[int, int]:
    """Major and minor of torch, without importing it; (0, 0) where it is not installed."""
    if not installed("torch"):
        return 0, 0
    major, minor = metadata.version("torch").split(".")[:2]
    return int(major), int(minor)


@functools.cache
def capability() -> int | None:
    """Major compute capability of the first card; None where none is seen, as on a login node."""
    try:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetCudaComputeCapability(card)[0])
    except Exception:  # no such package, no driver, no card
        return None


def given(config: DictConfig) -> str | None:
    """The configuration's attention."""
    value = OmegaConf.select(config, ATTENTION)
    return None if value is None else str(value)


def _on_cpu(config: DictConfig) -> bool:
    return bool(OmegaConf.select(config, "trainer.device") == "cpu")


def too_old(attention: str) -> str | None:
    """Why the first card cannot run an attention; None if it can, and where no card is seen."""
    card, needed = capability(), CAPABILITY.get(attention, 0)
    if card is None or card >= needed:
        return None
    return f"needs compute capability {needed} or more, the first GPU has {card}"


def attention(*, _root_: DictConfig) -> str:
    """The actor's attention where the user names none."""
    if _on_cpu(_root_):
        return "sdpa"
    if installed("flash-attn") and too_old("flash_attention_2") is None:
        return "flash_attention_2"
    return "sdpa" if why_no_varlen(_root_) else VARLEN


def why_no_varlen(config: DictConfig) -> str:
    """Why attention over packed rows by torch's kernel cannot be used; empty if it can."""
    actor = config.actor_rollout_ref.actor
    if _on_cpu(config):
        return "is for GPUs"
    if not OmegaConf.select(config, f"{MODEL}.use_remove_padding", default=True):
        return f"needs {MODEL}.use_remove_padding=True"
    if torch_version() < VARLEN_TORCH:
        return "needs torch 2.10 or newer"
    if (why := too_old(VARLEN)) is not None:
        return why
    if sequence_parallel(actor) > 1:
        return "knows no sequence parallelism"
    if not _in_sixteen_bits(actor):
        return "needs 16 bits"
    return ""


def sequence_parallel(actor: DictConfig) -> int:
    """verl's two names of one number of ranks that share a sequence."""
    names = ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
    return max(int(OmegaConf.select(actor, name, default=1)) for name in names)


def _in_sixteen_bits(actor: DictConfig) -> bool:
    precision = OmegaConf.select(actor, "fsdp_config.mixed_precision.param_dtype")
    return precision is None or precision in _SIXTEEN_BITS  # verl's own default is bf16


def fused(*, _root_: DictConfig) -> bool:
    """Whether log-probs and entropies come from hidden states, without logits, by default."""
    if _on_cpu(_root_) or installed("flash-attn"):
        return False
    # both need the logits that fused kernels do not keep
    squares = OmegaConf.select(_root_, "actor_rollout_ref.actor.calculate_sum_pi_squared")
    return not squares and not OmegaConf.select(_root_, "distillation.enabled")


def fused_backend(*, _root_: DictConfig) -> str:
    """verl's Triton kernels, exact to 32 bits, where they run; else blocks of torch."""
    return "torch" if why_no_triton(_root_) else "triton"


def why_no_triton(config: DictConfig) -> str:
    """Why verl's Triton kernels cannot take the log-probs; empty if they can."""
    card, width = capability(), _width(OmegaConf.select(config, f"{MODEL}.path"))
    if _on_cpu(config):
        return "is for GPUs"
    if not installed("triton"):
        return "the package triton is not installed"
    if card is not None and card < 8:
        return f"needs compute capability 8 or more, the first GPU has {card}"
    if width is not None and width % TRITON_WIDTH:
        return f"needs a hidden_size that {TRITON_WIDTH} divides, the model's is {width}"
    return "" if _in_sixteen_bits(config.actor_rollout_ref.actor) else "needs 16 bits"


def _width(model: str | None) -> int | None:
    """hidden_size of a model's folder; None where it cannot be read, as of a name of the hub."""
    try:
        found = json.loads((Path(str(model)).expanduser() / "config.json").read_text())
        return int(found.get("text_config", found)["hidden_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_choices(config: DictConfig) -> None:
    """Put the choices into the configuration: other processes lack the resolvers."""
    model = config.actor_rollout_ref.model
    with open_dict(config):
        if (attention := given(config)) is not None:
            model.override_config.attn_implementation = attention
        model.use_fused_kernels = model.use_fused_kernels
        options = model.fused_kernel_options
        options.impl_backend = options.impl_backend
        rollout = config.actor_rollout_ref.rollout
        rollout.temperature = float(rollout.temperature)  # the Triton kernels refuse an integer
        if attention == VARLEN:
            model.external_lib = _with_varlen(model.external_lib)


def _with_varlen(given: Any) -> Any:
    """The user's modules and the one that registers our attention."""
    if given is None:
        return VARLEN_MODULE
    modules = [given] if isinstance(given, str) else list(given)
    return modules if VARLEN_MODULE in modules else [*modules, VARLEN_MODULE]


def line(config: DictConfig) -> str:
    """What the actor computes with, and why, for the start of a run."""
    model = config.actor_rollout_ref.model
    attention = given(config) or VERLS
    kind = f"fused ({model.fused_kernel_options.impl_backend})"
    log_probs = kind if model.use_fused_kernels else "from logits"
    why = "" if installed("flash-attn") else "; flash-attn is not installed"
    return f"exgrpo: the actor's attention is {attention}, its log-probs are {log_probs}{why}"
