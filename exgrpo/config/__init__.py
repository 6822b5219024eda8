"""The configurations, which Hydra finds by this package, and what ``${exgrpo....}`` means in them.

Hydra imports the package of ``--config-path pkg://exgrpo.config``, under verl's own command too:
so the resolvers are there before it composes.
"""

from __future__ import annotations

from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from exgrpo.config import kernels

RELEASED_GPUS = 8


def released_scale(response_length: int, rows: int) -> float:
    """The ``actor.loss_scale_factor`` with which verl's loss equals the released one.

    The released run sums the token losses of each GPU's rows, divides by the longest response
    allowed and averages over its 8 GPUs; ``clip_grad`` 1.0 and ``skip_grad_bound`` 500 belong to
    that scale. Its entropy bonus is the mean over response tokens of each micro-batch, summed over
    micro-batches and averaged over the 8 GPUs. Here both are sums over the whole mini-batch divided
    by 8, on any number of GPUs. verl's ``seq-mean-token-sum-norm`` divides the sum by the rows of a
    mini-batch and by this factor.

    Args:
        response_length: longest response allowed, in tokens (``data.max_response_length``).
        rows: of a mini-batch over all GPUs (``ppo_mini_batch_size`` * ``rollout.n``).
    """
    scale = response_length * RELEASED_GPUS / rows
    return int(scale) if scale.is_integer() else scale


def _released_scale(*, _root_: DictConfig) -> float:
    """The scale, from keys that start at the configuration's root."""
    actor_rollout = _root_.actor_rollout_ref
    rows = actor_rollout.actor.ppo_mini_batch_size * actor_rollout.rollout.n
    return released_scale(_root_.data.max_response_length, rows)


def _config_of_verl() -> str:
    """verl's configuration as Hydra names a folder; verl is not imported."""
    verl = find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise ModuleNotFoundError(
            "verl is not installed: bash exp_scripts/setup_cpu.sh, or setup_gpu.sh, installs it"
        )
    return f"file://{verl.submodule_search_locations[0]}/trainer/config"


OmegaConf.register_new_resolver("exgrpo.released_scale", _released_scale, replace=True)
OmegaConf.register_new_resolver("exgrpo.config_of_verl", _config_of_verl, replace=True)
for _name in ("attention", "fused", "fused_backend"):
    OmegaConf.register_new_resolver(f"exgrpo.{_name}", getattr(kernels, _name), replace=True)
