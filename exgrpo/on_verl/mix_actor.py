"""Actor side of ExGRPO in verl: policy loss ``exgrpo``, settings, entropy bonus, update.

Imported in the actor's process because the configuration's ``_target_`` names
:class:`MixPolicyLossConfig`.

The trainer passes phase and correction weight of each token as ``rollout_is_weights``
(:mod:`exgrpo.on_verl.correct`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass, replace
from typing import Any

import torch
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, register_policy_loss
from verl.utils.device import get_device_name
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import FSDPOptimizerConfig, PolicyLossConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead
from verl.workers.utils.padding import no_padding_2_padding

from exgrpo.config import RELEASED_GPUS
from exgrpo.loss_metrics import ENTROPY, ENTROPY_TOKENS, MAXIMUM, SUM
from exgrpo.loss_settings import LIKELIHOOD
from exgrpo.mix_core_alg import token_losses_and_sums
from exgrpo.on_verl.correct import (
    OF_POLICY_LOSS,
    ON_POLICY,
    is_mixed,
    is_replayed,
    rows_of,
    settings_of,
    weights_of,
)
from exgrpo.on_verl.triton_start import compile_log_prob_kernels

OURS = "exgrpo"
MixPolicyLossConfig = make_dataclass(
    "MixPolicyLossConfig",
    [
        ("entropy_agg", str, "verl"),
        ("fresh_loss_mode", str, OURS),
        *((name, setting.type, setting.default) for name, setting in OF_POLICY_LOSS.items()),
    ],
    bases=(PolicyLossConfig,),
    namespace={
        "__module__": __name__,
        "__doc__": """verl's policy-loss settings and, by the same names, those of LossSettings.

    ``entropy_agg`` is how token entropies are aggregated into the entropy bonus: ``verl``, like the
    token losses, or ``released``, see exgrpo.config. ``fresh_loss_mode`` is the
    user's ``loss_mode``, the policy loss of fresh tokens (exgrpo.preflight.checks.resolve); with
    replay verl's ``loss_mode`` is always ``exgrpo``.
    """,
    },
)


@dataclass
class SkipFSDPOptimizerConfig(FSDPOptimizerConfig):
    """verl's settings and ``skip_grad_bound``: updates above that gradient norm are skipped."""

    skip_grad_bound: float | None = None


@register_policy_loss(OURS)
def compute_policy_loss_exgrpo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The mixed objective of ExGRPO (section 4.2), aggregated by ``loss_agg_mode``.

    With ``fresh_loss_mode`` the fresh tokens' part is another policy loss registered with verl;
    replayed tokens are masked for it.

    Args:
        old_log_prob: [B, T] log-probs of the policy that generated the tokens: this step's for
            fresh rows, the recorded ones for replayed rows.
        rollout_is_weights: [B, T] phase codes, see the module; verl's name for it.
    """
    phase = rollout_is_weights
    if phase is None:
        phase = torch.full_like(log_prob, ON_POLICY)
    loss_config, replayed = config.policy_loss, is_replayed(phase)
    settings = settings_of(config)
    if not is_mixed(phase, response_mask):  # delayed start: plain PPO until mixing begins
        settings = replace(settings, loss_remove_clip=False)
    row_values = log_prob, old_log_prob, advantages, replayed, response_mask
    token_losses, sums = token_losses_and_sums(*row_values, settings=settings, rows=rows_of(phase))
    weights, ours, theirs = weights_of(phase), response_mask, {}
    fresh_loss: torch.Tensor | float = 0.0
    if loss_config.fresh_loss_mode != OURS:
        ours = response_mask.bool() & replayed
        policy_loss = get_policy_loss_fn(loss_config.fresh_loss_mode)
        fresh = response_mask.bool() & ~replayed
        given = {"config": config, "rollout_is_weights": weights}
        fresh_loss, theirs = policy_loss(
            old_log_prob, log_prob, advantages, fresh, loss_agg_mode, **given
        )
        sums |= dict.fromkeys(("fresh_loss", "fresh_clipped"), weights.new_zeros(()))
    rehearsal: torch.Tensor | float = 0.0
    if settings.off_policy_loss == LIKELIHOOD:
        rehearsed, ours = response_mask.bool() & replayed, response_mask.bool() & ~replayed & ours
        mean = agg_loss(token_losses, rehearsed, "seq-mean-token-sum", **config.global_batch_info)
        rehearsal = settings.likelihood_weight * mean
    loss = (
        rehearsal
        + fresh_loss
        + agg_loss(token_losses * weights, ours, loss_agg_mode, **config.global_batch_info)
    )
    # one transfer from the device
    values = torch.stack([value.double() for value in sums.values()]).tolist()
    names = [f"actor/{name}" if name == MAXIMUM else SUM + name for name in sums]
    return loss, theirs | dict(zip(names, values, strict=True))


def with_released_entropy(loss_function: Callable[..., Any]) -> Callable[..., Any]:
    """verl's actor loss with the released bonus: the micro-batches' token means, summed, over 8.

    Args:
        loss_function: verl's ``partial(ppo_loss, config=ActorConfig)``; returned unchanged unless
            its configuration has ``policy_loss.entropy_agg=released``.
    """
    config = loss_function.keywords["config"]  # type: ignore[attr-defined]
    if getattr(config.policy_loss, "entropy_agg", "verl") != "released":
        return loss_function

    def loss_with_bonus(
        model_output: dict[str, Any], data: Any, dp_group: Any = None
    ) -> tuple[torch.Tensor, dict]:
        others = {name: value for name, value in model_output.items() if name != "entropy"}
        loss, metrics = loss_function(model_output=others, data=data, dp_group=dp_group)
        if model_output.get("entropy") is None:
            return loss, metrics
        mask = data.select("response_mask").to_padded_tensor()["response_mask"].bool()
        total = torch.where(mask, no_padding_2_padding(model_output["entropy"], data), 0.0).sum()
        tokens = mask.sum()
        # FSDP averages over ranks, the released code over its 8 GPUs
        bonus = total / tokens.clamp(min=1) * (data["dp_size"] / RELEASED_GPUS)
        metrics[SUM + ENTROPY] = Metric(AggregationType.SUM, total)
        metrics[SUM + ENTROPY_TOKENS] = Metric(AggregationType.SUM, tokens)
        return loss - config.entropy_coeff * bonus, metrics

    return loss_with_bonus


def add_up(metrics: dict[str, Any]) -> None:
    """Mark sums to be added over micro-batches and maxima to be maximised; verl averages all."""
    for name, metric in metrics.items():
        if name.startswith(SUM):
            kind = AggregationType.SUM
        elif name == f"actor/{MAXIMUM}":
            kind = AggregationType.MAX
        else:
            continue
        metrics[name] = Metric(kind)
        metrics[name].extend(metric.values)


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "npu"], vendor="exgrpo"
)
class SkippingFSDPEngine(FSDPEngineWithLMHead):
    """verl's FSDP engine; an update of a norm above ``optim.skip_grad_bound`` is skipped.

    Selected by VERL_ENGINE_VENDOR=exgrpo, which our configuration sets for its own workers.
    """

    def initialize(self) -> None:
        super().initialize()
        compile_log_prob_kernels(self.model_config, self._autocast_dtype, get_device_name())

    def optimizer_step(self) -> torch.Tensor:
        limit = getattr(self.optimizer_config, "skip_grad_bound", None)
        self._skipped = False
        if limit is None:
            return super().optimizer_step()
        norm = self._gradient_norm()  # verl clips and steps in one call, too late to skip it
        if torch.isfinite(norm) and norm > limit:
            self._skipped = True
            self.optimizer.zero_grad()
            return norm
        return super().optimizer_step()

    def _gradient_norm(self) -> torch.Tensor:
        """The gradient norm over all ranks; gradients, scaled in fp16, are not changed."""
        if hasattr(self.module, "clip_grad_norm_"):  # FSDP1's own, which sums over shards
            norm = self.module.clip_grad_norm_(float("inf"))
        else:
            gradients = [each.grad for each in self.module.parameters() if each.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        scaler = getattr(self, "scaler", None)
        return norm if scaler is None else norm / scaler.get_scale()

    def train_batch(self, data: Any, loss_function: Any) -> Any:
        outputs = super().train_batch(data, with_released_entropy(loss_function))
        if self.is_mp_src_rank_with_outputs():
            add_up(outputs["metrics"])
            # a list, like the micro-batches' metrics
            outputs["metrics"]["skipped_update"] = [float(self._skipped)]
        return outputs
