"""Actor side of ExGRPO in verl: the policy loss ``exgrpo``, its settings, and the update: its entropy bonus and sums.

Imported in the actor's process because the configuration's ``_target_`` names :class:`MixPolicyLossConfig`.

A policy loss registered with verl never sees the batch; its only per-token argument is ``rollout_is_weights``. The
trainer carries the phase code of each token there (:mod:`exgrpo.on_verl.phase`), so rollout correction is refused
together with replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Any

import torch
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import FSDPOptimizerConfig, PolicyLossConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead
from verl.workers.utils.padding import no_padding_2_padding

from exgrpo.loss_metrics import ENTROPY, ENTROPY_TOKENS, MAXIMUM, SUM
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import token_losses_and_sums
from exgrpo.on_verl.phase import ON_POLICY, REPLAYED
from exgrpo.on_verl.released_scale import RELEASED_GPUS

# of LossSettings, PPO's clip range is verl's own setting elsewhere
_OURS = [each for each in fields(LossSettings) if not each.name.startswith("cliprange_")]
MixPolicyLossConfig = make_dataclass(
    "MixPolicyLossConfig",
    [("entropy_agg", str, "verl"), *((each.name, each.type, each.default) for each in _OURS)],
    bases=(PolicyLossConfig,),
    namespace={
        "__module__": __name__,
        "__doc__": """verl's policy-loss settings and those of exgrpo.loss_settings.LossSettings, by the same names.

    ``entropy_agg`` is how token entropies make the entropy bonus: ``verl``, as the token losses make the loss, or
    ``released``, see exgrpo.on_verl.released_scale.
    """,
    },
)


@dataclass
class SkipFSDPOptimizerConfig(FSDPOptimizerConfig):
    """verl's FSDP optimizer settings and ``skip_grad_bound``: an update above that gradient norm is not made."""

    skip_grad_bound: float | None = None


@register_policy_loss("exgrpo")
def compute_policy_loss_exgrpo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The mixed objective of ExGRPO (section 3.3), aggregated as ``loss_agg_mode`` says.

    Args:
        old_log_prob: [B, T] log-probs of the policy that wrote the tokens: this step's for fresh rows, the recorded
            ones for replayed rows.
        rollout_is_weights: [B, T] phase codes, see the module docstring; verl names this argument.
    """
    phase = torch.full_like(log_prob, ON_POLICY) if rollout_is_weights is None else rollout_is_weights
    loss_config = config.policy_loss
    mixed = bool((phase != ON_POLICY).any())
    settings = LossSettings(
        cliprange_low=config.clip_ratio_low,
        cliprange_high=config.clip_ratio_high,
        **{each.name: getattr(loss_config, each.name) for each in _OURS},
    )
    settings = settings if mixed else replace(settings, loss_remove_clip=False)  # delayed start: plain PPO until then
    token_losses, sums = token_losses_and_sums(
        log_prob, old_log_prob, advantages, phase == REPLAYED, response_mask, settings
    )
    loss = agg_loss(
        loss_mat=token_losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info
    )
    values = torch.stack([value.double() for value in sums.values()]).tolist()  # the device is asked once
    return loss, {
        f"actor/{name}" if name == MAXIMUM else SUM + name: value for name, value in zip(sums, values, strict=True)
    }


def with_released_entropy(loss_function: Callable[..., Any]) -> Callable[..., Any]:
    """verl's actor loss with the released entropy bonus: each micro-batch's mean over tokens, added, over 8.

    Args:
        loss_function: verl's ``partial(ppo_loss, config=ActorConfig)``; returned as it is unless its configuration
            says ``policy_loss.entropy_agg=released``.
    """
    config = loss_function.keywords["config"]  # type: ignore[attr-defined]
    if getattr(config.policy_loss, "entropy_agg", "verl") != "released":
        return loss_function

    def loss_with_bonus(model_output: dict[str, Any], data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
        others = {name: value for name, value in model_output.items() if name != "entropy"}
        loss, metrics = loss_function(model_output=others, data=data, dp_group=dp_group)
        if model_output.get("entropy") is None:
            return loss, metrics
        mask = data.select("response_mask").to_padded_tensor()["response_mask"].bool()
        total = torch.where(mask, no_padding_2_padding(model_output["entropy"], data), 0.0).sum()
        tokens = mask.sum()
        # FSDP takes the mean over ranks, the release over its GPUs
        bonus = total / tokens.clamp(min=1) * (data["dp_size"] / RELEASED_GPUS)
        metrics[SUM + ENTROPY] = Metric(AggregationType.SUM, total)
        metrics[SUM + ENTROPY_TOKENS] = Metric(AggregationType.SUM, tokens)
        return loss - config.entropy_coeff * bonus, metrics

    return loss_with_bonus


def add_up(metrics: dict[str, Any]) -> None:
    """Have verl add sums over micro-batches and take the greatest of maxima, in place; it would average them all."""
    kinds = {f"actor/{MAXIMUM}": AggregationType.MAX}
    for name, found in metrics.items():
        kind = AggregationType.SUM if name.startswith(SUM) else kinds.get(name)
        if kind is not None:
            metrics[name] = Metric(kind)
            metrics[name].extend(found.values)


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "npu"], vendor="exgrpo"
)
class SkippingFSDPEngine(FSDPEngineWithLMHead):
    """verl's FSDP engine; an update whose gradient norm exceeds ``optim.skip_grad_bound`` is skipped and counted.

    Chosen by the environment variable VERL_ENGINE_VENDOR=exgrpo, which our configuration sets for its own workers.
    """

    def optimizer_step(self) -> torch.Tensor:
        limit = getattr(self.optimizer_config, "skip_grad_bound", None)
        self._skipped = False
        if limit is None:
            return super().optimizer_step()
        norm = self._gradient_norm()  # verl clips and steps in one call, too late to say no
        if torch.isfinite(norm) and norm > limit:
            self._skipped = True
            self.optimizer.zero_grad()
            return norm
        return super().optimizer_step()

    def _gradient_norm(self) -> torch.Tensor:
        """The norm over all ranks of gradients that are left as they are."""
        if hasattr(self.module, "clip_grad_norm_"):  # FSDP1 knows its shards
            return self.module.clip_grad_norm_(float("inf"))
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.module.parameters() if p.grad is not None])
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def train_batch(self, data: Any, loss_function: Any) -> Any:
        outputs = super().train_batch(data, with_released_entropy(loss_function))
        if self.is_mp_src_rank_with_outputs():
            add_up(outputs["metrics"])
            outputs["metrics"]["skipped_update"] = [float(self._skipped)]  # a list, as of micro-batches
        return outputs
