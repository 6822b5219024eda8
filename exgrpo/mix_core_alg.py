"""The objective of ExGRPO (arXiv 2510.02245, equation 4 and Appendix D): functions of tensors.

Needs only torch. B is the number of rows, T of padded response tokens; log-probs are natural
logarithms. Every formula uses the log-ratio, so that no ratio overflows: the paper's policy shaping
f(w) = w / (w + beta) is computed as sigmoid(log w - log beta).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from exgrpo.loss_metrics import MAXIMUM, means_of
from exgrpo.loss_settings import RESHAPE_PARAMETERS, SHAPED, LossSettings, beta_of
from exgrpo.open_table import OpenTable
from exgrpo.replay_losses import REPLAY_LOSSES, ReplayRows, takes_rows

Reshape = Callable[[Tensor, Tensor, float, float], Tensor]
_MAX_LOG_RATIO = 20.0  # verl's bound on a log-ratio; beyond it the gradient is 0


# Reshapes by name, f(w) as float[...]; w = pi / pi_past, of fresh tokens pi / pi_old.
_SHARED: dict[str, Reshape] = {
    "no_reshape": lambda log_w, log_pi, weight, pow_exp: torch.exp(log_w),
    "square_root": lambda log_w, log_pi, weight, pow_exp: torch.exp(0.5 * log_w),
    "pow": lambda log_w, log_pi, weight, pow_exp: torch.exp(pow_exp * log_w),
}
# logp is of log pi for replayed tokens and of log w for fresh ones, as released
OFF_POLICY_RESHAPES: OpenTable[Reshape] = OpenTable(
    RESHAPE_PARAMETERS,
    {
        **_SHARED,
        "logp": lambda log_w, log_pi, weight, pow_exp: weight * log_pi,
        "p_logp": lambda log_w, log_pi, weight, pow_exp: torch.exp(log_w) + weight * log_pi,
    },
)
ON_POLICY_RESHAPES: OpenTable[Reshape] = OpenTable(
    RESHAPE_PARAMETERS,
    {
        **_SHARED,
        "logp": lambda log_w, log_pi, weight, pow_exp: log_w,
        "p_logp": lambda log_w, log_pi, weight, pow_exp: torch.exp(log_w) + weight * log_w,
    },
)


def off_policy_ratio(
    log_ratio: Tensor, log_prob: Tensor, name: str, weight: float, pow_exp: float
) -> Tensor:
    """f(w*) of replayed tokens, by name; see :class:`LossSettings`.

    Args:
        log_ratio: float[...] log w*, already bounded.
        log_prob: float[...] log pi, for ``logp`` and ``p_logp``.

    The gradient of ``p_div_p`` with respect to log w is beta * w / (w + beta)^2: 0.0826 at w = 1
    and beta = 0.1, with a maximum of 1/4 at w = beta.
    """
    beta = beta_of(name)
    if beta is not None:
        return torch.sigmoid(log_ratio - math.log(beta))
    reshape = OFF_POLICY_RESHAPES.load("policy_loss.off_policy_reshape", name)
    return reshape(log_ratio, log_prob, weight, pow_exp)


def on_policy_ratio(
    log_ratio: Tensor, log_prob: Tensor, name: str, weight: float, pow_exp: float
) -> Tensor:
    """The reshaped ratio of fresh tokens, by name; arguments as of :func:`off_policy_ratio`."""
    beta = beta_of(name)
    if beta is not None:
        past = (log_prob - log_ratio).detach().exp()
        return torch.exp(log_ratio) * (past + beta) / (log_prob.exp() + beta)
    reshape = ON_POLICY_RESHAPES.load("policy_loss.on_policy_reshape", name)
    return reshape(log_ratio, log_prob, weight, pow_exp)


def mixed_token_losses(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    is_replayed: Tensor,
    response_mask: Tensor,
    settings: LossSettings,
    rows: ReplayRows | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of each token: -f(w*) A of replayed, -CLIP(w, A) of fresh ones (equation 4).

    CLIP(w, A) is w A with ``loss_remove_clip``, the default of mixed steps. With an
    ``off_policy_loss`` but ``shaped``, that of exgrpo.replay_losses stands for -f(w*) A.

    Args:
        log_prob: float[B, T] under the policy being trained; the only one with gradients.
        old_log_prob: float[B, T] under the policy that generated the tokens: pi_old for fresh rows,
            pi_past for replayed rows.
        advantages: float[B, T] over the mixed group.
        is_replayed: bool[B, T], or bool[B] or bool[B, 1] for whole rows.
        response_mask: bool or 0/1 [B, T]; masked positions may hold any value, including NaN.
        rows: ages and groups, for an ``off_policy_loss`` of yours that takes them.

    Returns:
        float[B, T], zero where masked, and scalar metrics (detached, the same keys, 0 for none).

    Raises:
        ValueError: in one line, if shapes or dtypes do not match, or `rows` are missing.
        RuntimeError: in one line, if an unmasked value is NaN.
    """
    given = log_prob, old_log_prob, advantages, is_replayed, response_mask
    losses, sums = token_losses_and_sums(*given, settings=settings, rows=rows)
    return losses, means_of(sums)


def token_losses_and_sums(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    is_replayed: Tensor,
    response_mask: Tensor,
    settings: LossSettings,
    rows: ReplayRows | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """As :func:`mixed_token_losses`, with sums and counts, to be added over micro-batches."""
    replayed = _checked(log_prob, old_log_prob, advantages, is_replayed, response_mask)
    mask = response_mask.bool()
    replayed = replayed & mask
    _refuse_nan(log_prob.detach(), old_log_prob, advantages, mask)
    bounded = (log_prob - old_log_prob).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    log_ratio = torch.where(mask, bounded, 0.0)
    minus_advantages = torch.where(mask, advantages.detach(), 0.0).neg_()
    silent = None
    if settings.all_max_clip != -1:
        silent = log_prob.detach() > math.log(settings.all_max_clip)
        minus_advantages.masked_fill_(silent, 0.0)
    if settings.reads_log_prob:
        log_prob = torch.where(mask, log_prob, 0.0)
    shaped, clipped = _fresh_ratio(log_ratio, log_prob, minus_advantages, settings)
    any_replayed = bool(replayed.any())
    if any_replayed and settings.off_policy_loss == SHAPED:
        shaped = torch.where(replayed, _replayed_ratio(log_ratio, log_prob, settings), shaped)
    losses = minus_advantages * shaped
    if any_replayed and settings.off_policy_loss != SHAPED:
        key, name = "policy_loss.off_policy_loss", settings.off_policy_loss
        of_replayed, more = REPLAY_LOSSES.load(key, name), [rows] if takes_rows(name) else []
        if more == [None]:
            raise ValueError(f"{key}={name}: takes rows, of which no ages and groups are given")
        given = log_ratio, log_prob, -minus_advantages, replayed, settings, *more
        of_rows = of_replayed(*given)
        if silent is not None:  # a rule of yours may not be 0 where A is
            of_rows = of_rows.masked_fill(silent, 0.0)
        losses = torch.where(replayed, of_rows, losses)
    with torch.no_grad():
        sums = _sums(losses, log_ratio, shaped, clipped, mask=mask, replayed=replayed)
    return losses, sums


def _checked(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    is_replayed: Tensor,
    response_mask: Tensor,
) -> Tensor:
    """``is_replayed`` as bool[B, T]; ValueError unless all are as in `mixed_token_losses`."""
    tensors = {"log_prob": log_prob, "old_log_prob": old_log_prob, "advantages": advantages}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name}: must be floating point, got {tensor.dtype}")
    if is_replayed.dtype != torch.bool:
        raise ValueError(f"is_replayed: must be torch.bool, got {is_replayed.dtype}")
    if log_prob.dim() == 2 and is_replayed.shape in (log_prob.shape[:1], (len(log_prob), 1)):
        is_replayed = is_replayed.reshape(-1, 1).expand(log_prob.shape)
    tensors |= {"is_replayed": is_replayed, "response_mask": response_mask}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or log_prob.dim() != 2:
        raise ValueError(f"all must be [rows, tokens] of one shape, got {shapes}")
    return is_replayed


def _refuse_nan(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, mask: Tensor) -> None:
    """RuntimeError that names which has NaN at an unmasked token; a single look at the device."""
    if not ((log_prob + old_log_prob + advantages).isnan() & mask).any():
        return
    tensors = {"log_prob": log_prob, "old_log_prob": old_log_prob, "advantages": advantages}
    for name, tensor in tensors.items():
        if wrong := int((tensor.isnan() & mask).sum()):
            tokens = f"{int(mask.sum())} tokens that are trained on"
            raise RuntimeError(f"{name}: NaN at {wrong} of {tokens}")


def _fresh_ratio(
    log_ratio: Tensor, log_prob: Tensor, minus_advantages: Tensor, settings: LossSettings
) -> tuple[Tensor, Tensor | None]:
    """CLIP(w, A) / A of every token and, if clipping is on, which tokens are clipped.

    min(w A, clip(w) A) clips only from above for A > 0 and only from below for A < 0; these ratios
    become the bound.
    """
    weight, pow_exp = settings.on_policy_reshape_weight, settings.on_policy_reshape_pow_exp
    ratio = on_policy_ratio(log_ratio, log_prob, settings.on_policy_reshape, weight, pow_exp)
    if settings.loss_remove_clip:
        return ratio, None
    low = 1 - settings.cliprange_low
    high = max(1 + settings.cliprange_high, settings.clip_upper_bound)
    with torch.no_grad():
        above = (minus_advantages < 0) & (ratio > high)
        below = (minus_advantages > 0) & (ratio < low)
    return ratio.masked_fill(above, high).masked_fill(below, low), above | below


def _replayed_ratio(log_ratio: Tensor, log_prob: Tensor, settings: LossSettings) -> Tensor:
    """f(w*) of every token, within its bounds."""
    weight, pow_exp = settings.off_policy_reshape_weight, settings.off_policy_reshape_pow_exp
    shaped = off_policy_ratio(log_ratio, log_prob, settings.off_policy_reshape, weight, pow_exp)
    if settings.off_policy_max_clip != -1:
        shaped = shaped.clamp(max=settings.off_policy_max_clip)
    if settings.off_policy_min_clip != -1:
        shaped = shaped.clamp(min=settings.off_policy_min_clip)
    return shaped


def _sums(
    losses: Tensor,
    log_ratio: Tensor,
    shaped: Tensor,
    clipped: Tensor | None,
    mask: Tensor,
    replayed: Tensor,
) -> dict[str, Tensor]:
    """Sums over fresh and replayed tokens, their counts, the largest replayed ratio; 0 for none."""
    fresh = mask & ~replayed
    zero = losses.new_zeros(())
    weights = torch.exp(log_ratio[replayed])
    return {
        "fresh_tokens": fresh.sum(),
        "fresh_loss": torch.where(fresh, losses, 0.0).sum(),
        "fresh_ratio": torch.where(fresh, torch.exp(log_ratio), 0.0).sum(),
        "fresh_clipped": zero if clipped is None else (clipped & fresh).sum(),
        "fresh_log_ratio": torch.where(fresh, log_ratio, 0.0).sum(),
        "replayed_tokens": replayed.sum(),
        "replayed_loss": losses[replayed].sum(),
        "replayed_ratio": weights.sum(),
        "replayed_square": weights.square().sum().clamp(min=torch.finfo(weights.dtype).tiny),
        "replayed_shaped": shaped[replayed].sum(),
        MAXIMUM: weights.max() if weights.numel() else zero,
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
    """:func:`mixed_token_losses` aggregated to one number as in the released code.

    With ``loss_remove_token_mean`` the sum over all rows is divided by T (Dr. GRPO's constant) and
    not by the number of rows; otherwise by the number of response tokens. verl uses its own
    ``loss_agg_mode`` instead.
    """
    given = log_prob, old_log_prob, advantages, is_replayed, response_mask
    losses, metrics = mixed_token_losses(*given, settings=settings or LossSettings())
    divisor = losses.shape[-1] if loss_remove_token_mean else response_mask.sum().clamp(min=1)
    return losses.sum() / divisor, metrics
