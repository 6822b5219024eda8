"""The mixed-policy objective of ExGRPO (arXiv 2510.02245, equation 4 and Appendix D) as plain functions of tensors.

Needs torch alone. B is rows, T padded response tokens; log-probs are natural logarithms. Every formula works on the
log-ratio, so that no ratio overflows: f(w) = w / (w + beta) is computed as sigmoid(log w - log beta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_LOG_RATIO = 20.0  # verl's bound on a log-ratio; beyond it the gradient is cut
_NAMED_RESHAPES = ("no_reshape", "logp", "p_logp", "square_root", "pow")
_P_DIV_P = "p_div_p_"


@dataclass(frozen=True)
class LossSettings:
    """Which variant of the loss; names and values of the released code, -1 standing for "off".

    Attributes:
        cliprange_low, cliprange_high: PPO's clip range of fresh tokens, 1 - low to 1 + high.
        off_policy_reshape: f of replayed tokens: ``no_reshape`` w; ``p_div_p_<beta>`` w/(w+beta); ``square_root``
            w^.5; ``pow`` w^off_policy_reshape_pow_exp; ``logp`` weight * log pi; ``p_logp`` w + weight * log pi.
        on_policy_reshape: of fresh tokens: ``p_div_p_<beta>`` g(pi)/g(pi_old) with g(p) = p/(p+beta); ``logp`` log w;
            ``p_logp`` w + weight * log w; the others as above.
        off_policy_max_clip, off_policy_min_clip: bounds of f(w) of replayed tokens.
        all_max_clip: tokens to which the current policy gives a higher probability than this add nothing.
        loss_remove_clip: no PPO clipping of fresh tokens (Appendix D, once mixing has begun).

    Raises:
        ValueError: one line with key, value and what is allowed.
    """

    cliprange_low: float = 0.2
    cliprange_high: float = 0.2
    off_policy_reshape: str = "p_div_p_0.1"
    off_policy_reshape_weight: float = 1.0
    off_policy_reshape_pow_exp: float = 0.5
    on_policy_reshape: str = "no_reshape"
    on_policy_reshape_weight: float = 1.0
    on_policy_reshape_pow_exp: float = 0.5
    off_policy_max_clip: float = -1.0
    off_policy_min_clip: float = -1.0
    all_max_clip: float = -1.0
    loss_remove_clip: bool = True

    def __post_init__(self) -> None:
        for key in ("off_policy_reshape", "on_policy_reshape"):
            _beta(getattr(self, key), key)
        for key in ("off_policy_max_clip", "off_policy_min_clip", "all_max_clip"):
            if getattr(self, key) != -1 and not getattr(self, key) > 0:
                raise ValueError(f"policy_loss.{key}={getattr(self, key)}: must be a positive number, or -1 for off")
        for key in ("cliprange_low", "cliprange_high"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key}={getattr(self, key)}: must be a number of 0 or more")


def _beta(name: str, key: str) -> float | None:
    """beta of ``p_div_p_<beta>``; None for the reshapes that have a name."""
    if name in _NAMED_RESHAPES:
        return None
    try:
        beta = float(name.removeprefix(_P_DIV_P)) if name.startswith(_P_DIV_P) else math.nan
    except ValueError:
        beta = math.nan
    if not (beta > 0 and math.isfinite(beta)):
        raise ValueError(
            f"policy_loss.{key}={name}: must be {', '.join(_NAMED_RESHAPES)} or p_div_p_<beta> with beta above 0, "
            "such as p_div_p_0.1"
        )
    return beta


def off_policy_ratio(log_ratio: Tensor, log_prob: Tensor, name: str, weight: float, pow_exp: float) -> Tensor:
    """f(w*) of replayed tokens, by name; see :class:`LossSettings`.

    Args:
        log_ratio: float[...] log w*, already bounded.
        log_prob: float[...] log pi, for ``logp`` and ``p_logp``.

    The gradient of ``p_div_p`` with respect to log w is beta * w / (w + beta)^2: 0.0826 at w = 1 and beta = 0.1, and
    never above 1/4, which it reaches at w = beta.
    """
    beta = _beta(name, "off_policy_reshape")
    if beta is not None:
        return torch.sigmoid(log_ratio - math.log(beta))
    if name == "logp":
        return weight * log_prob
    return _power(log_ratio, log_prob, name, weight, pow_exp)


def on_policy_ratio(log_ratio: Tensor, log_prob: Tensor, name: str, weight: float, pow_exp: float) -> Tensor:
    """The reshaped ratio of fresh tokens, by name; arguments as of :func:`off_policy_ratio`."""
    beta = _beta(name, "on_policy_reshape")
    if beta is not None:
        past = (log_prob - log_ratio).detach().exp()
        return torch.exp(log_ratio) * (past + beta) / (log_prob.exp() + beta)
    if name == "logp":
        return log_ratio
    return _power(log_ratio, log_ratio, name, weight, pow_exp)


def _power(log_ratio: Tensor, log_term: Tensor, name: str, weight: float, pow_exp: float) -> Tensor:
    """The reshapes that fresh and replayed tokens share."""
    exponent = {"square_root": 0.5, "pow": pow_exp}.get(name, 1.0)
    ratio = torch.exp(log_ratio if exponent == 1.0 else exponent * log_ratio)
    return ratio + weight * log_term if name == "p_logp" else ratio


def mixed_token_losses(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    is_replayed: Tensor,
    response_mask: Tensor,
    settings: LossSettings,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of each token, not aggregated: -f(w*) A of replayed tokens, -CLIP(w, A) of fresh ones (equation 4).

    Args:
        log_prob: float[B, T] under the policy being trained; the only argument gradients flow to.
        old_log_prob: float[B, T] under the policy that wrote the tokens: pi_old of fresh rows, pi_past of replayed.
        advantages: float[B, T] over the mixed group.
        is_replayed: bool[B, T].
        response_mask: bool or 0/1 [B, T]; what it leaves out may hold anything, NaN included.

    Returns:
        float[B, T], zero where masked, and scalar metrics (detached, always the same keys, 0 for an empty selection).

    Raises:
        ValueError: shapes that differ.
    """
    _check_shapes(log_prob, old_log_prob, advantages, is_replayed, response_mask)
    mask = response_mask.bool()
    log_prob = log_prob.masked_fill(~mask, 0.0)
    log_ratio = (log_prob - old_log_prob.masked_fill(~mask, 0.0)).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    advantages = advantages.masked_fill(~mask, 0.0)
    losses, clipped = _fresh_losses(log_prob, log_ratio, advantages, settings)
    replayed = mask & is_replayed
    if bool(replayed.any()):
        weight, pow_exp = settings.off_policy_reshape_weight, settings.off_policy_reshape_pow_exp
        shaped = off_policy_ratio(log_ratio, log_prob, settings.off_policy_reshape, weight, pow_exp)
        if settings.off_policy_max_clip != -1:
            shaped = shaped.clamp(max=settings.off_policy_max_clip)
        if settings.off_policy_min_clip != -1:
            shaped = shaped.clamp(min=settings.off_policy_min_clip)
        losses = torch.where(replayed, -advantages * shaped, losses)
    dropped = ~mask
    if settings.all_max_clip != -1:
        dropped = dropped | (log_prob.detach() > math.log(settings.all_max_clip))
    losses = losses.masked_fill(dropped, 0.0)
    with torch.no_grad():
        metrics = _metrics(losses, log_ratio, clipped, mask, replayed)
    return losses, metrics


def _check_shapes(*tensors: Tensor) -> None:
    names = ("log_prob", "old_log_prob", "advantages", "is_replayed", "response_mask")
    shapes = {name: tuple(tensor.shape) for name, tensor in zip(names, tensors, strict=True)}
    if len(set(shapes.values())) > 1 or tensors[0].dim() != 2:
        raise ValueError(f"all must be [rows, tokens] alike, got {shapes}")


def _fresh_losses(
    log_prob: Tensor, log_ratio: Tensor, advantages: Tensor, settings: LossSettings
) -> tuple[Tensor, Tensor | None]:
    """PPO's surrogate of every token and, where clipping is on, which tokens it clipped."""
    weight, pow_exp = settings.on_policy_reshape_weight, settings.on_policy_reshape_pow_exp
    ratio = on_policy_ratio(log_ratio, log_prob, settings.on_policy_reshape, weight, pow_exp)
    losses, clipped = -advantages * ratio, None
    if not settings.loss_remove_clip:
        bounded = -advantages * ratio.clamp(1 - settings.cliprange_low, 1 + settings.cliprange_high)
        clipped = bounded > losses
        losses = torch.maximum(losses, bounded)
    return losses, clipped


def _mean(values: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, values, 0.0).sum() / where.sum().clamp(min=1)


def _metrics(
    losses: Tensor, log_ratio: Tensor, clipped: Tensor | None, mask: Tensor, replayed: Tensor
) -> dict[str, Tensor]:
    """Means over tokens; ``replayed_ess``, the effective sample size of the importance weights, is (sum w)^2 / (n sum w^2)."""
    fresh = mask & ~replayed
    ratio = torch.exp(log_ratio)
    weights = torch.where(replayed, ratio, 0.0)
    squares = (weights * weights).sum().clamp(min=torch.finfo(ratio.dtype).tiny)
    count = replayed.sum()
    return {
        "fresh_loss": _mean(losses, fresh),
        "fresh_ratio_mean": _mean(ratio, fresh),
        "fresh_clipfrac": ratio.new_zeros(()) if clipped is None else _mean(clipped.to(ratio.dtype), fresh),
        "ppo_kl": _mean(-log_ratio, fresh),
        "replayed_loss": _mean(losses, replayed),
        "replayed_tokens_share": count / mask.sum().clamp(min=1),
        "replayed_ratio_mean": _mean(ratio, replayed),
        "replayed_ratio_max": weights.max() if weights.numel() else ratio.new_zeros(()),
        "replayed_ess": weights.sum() ** 2 / (count.clamp(min=1) * squares),
    }


def mixed_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    is_replayed: Tensor,
    response_mask: Tensor,
    settings: LossSettings | None = None,
    loss_remove_token_mean: bool = True,
) -> tuple[Tensor, dict[str, Tensor]]:
    """:func:`mixed_token_losses` as one number, as the released code aggregates it.

    With ``loss_remove_token_mean`` the token losses of all rows are summed and divided by T alone (Dr. GRPO's constant,
    without the number of rows); else they are averaged over the response tokens. verl's trainer aggregates by its own
    ``loss_agg_mode`` instead.
    """
    losses, metrics = mixed_token_losses(
        log_prob, old_log_prob, advantages, is_replayed, response_mask, settings or LossSettings()
    )
    divisor = losses.shape[-1] if loss_remove_token_mean else response_mask.sum().clamp(min=1)
    return losses.sum() / divisor, metrics
