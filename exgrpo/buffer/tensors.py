"""Functions on tensors for any loop: entropies, weights, loss. Requires torch only.

B rows, T padded response tokens, V vocabulary; natural logarithms, entropies in nats. Masks are
bool or 0/1 [B, T]. Entropies, weights and loss also take rollouts as rows (exgrpo.buffer.policies),
which they pad and mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import Tensor

from exgrpo.advantages import group_advantages
from exgrpo.buffer import policies
from exgrpo.buffer.policies import Policy, Rollouts, Row
from exgrpo.experience.trajectory_selector import mean_entropy
from exgrpo.loss_settings import LIKELIHOOD, LossSettings
from exgrpo.mix_core_alg import mixed_token_losses
from exgrpo.refusal import refuse_as
from exgrpo.replay_losses import ReplayRows

_ROLLOUT_KEYS = ("log_prob", "old_log_prob", "response_mask", "group", "is_replayed", "age")


@overload
def compute_entropy(logits: Row) -> float | None: ...
@overload
def compute_entropy(logits: Tensor, response_mask: Tensor | None = None) -> Tensor: ...
def compute_entropy(
    logits: Tensor | Row, response_mask: Tensor | None = None
) -> Tensor | float | None:
    """Entropy of the distribution at each position, or H(o) of each row (`mean_entropy`).

    Args:
        logits: float[..., V]; minus infinity marks an impossible token. Or a rollout: a mapping
            with logits, float[T, V], entropies, float[T], entropy, its recorded mean, or log_probs,
            float[T], whose negative mean estimates it (line 11 of the paper's Algorithm 1); the
            first of these counts. Optionally with a loss_mask, [T].
        response_mask: [B, T] for logits [B, T, V]; masked positions may be NaN.

    Returns:
        float[...] without a mask; with one, float[B]: H(o) of each row. For a rollout what
        TrajectoryBuffer.add takes as `entropy`: a float, or None if an unknown one is recorded.

    Raises:
        ValueError: shapes do not fit, no response token is left, or a rollout has none of the four.
    """
    if isinstance(logits, Mapping):
        return _rollout_entropy(logits)
    entropies = torch.special.entr(torch.softmax(logits, dim=-1)).sum(dim=-1)
    if response_mask is None:
        return entropies
    if entropies.dim() != 2 or response_mask.shape != entropies.shape:
        shapes = f"{tuple(response_mask.shape)} for logits {tuple(logits.shape)}"
        raise ValueError(f"response_mask has shape {shapes}: must be [B, T] for [B, T, V]")
    mask = response_mask.bool()
    counts = mask.sum(dim=1)
    if not bool(counts.all()):
        refuse_as(f"response_mask leaves no token of row {int(counts.argmin())}", "leave one")
    return torch.where(mask, entropies, 0.0).sum(dim=1) / counts


def _rollout_entropy(rollout: Row) -> float | None:
    if rollout.get("logits") is not None:
        entropies = compute_entropy(torch.as_tensor(rollout["logits"]).detach())
    elif rollout.get("entropies") is not None:
        entropies = torch.as_tensor(rollout["entropies"]).detach()
    elif rollout.get("entropy") is not None:
        return float(rollout["entropy"])
    elif rollout.get("log_probs") is not None:
        entropies = -policies.vector(rollout["log_probs"]).detach().clamp(max=0)
    elif "entropy" in rollout:
        return None
    else:
        refuse_as("rollout without 'entropy'", "have logits, entropies or entropy, or log_probs")
    mask = rollout.get("loss_mask")
    if mask is not None:
        mask = policies.vector(mask).cpu().numpy()
    return mean_entropy(entropies.double().cpu().numpy(), mask)


def compute_importance_weights(
    log_prob: Tensor | None = None,
    past_log_prob: Tensor | None = None,
    response_mask: Tensor | None = None,
    settings: LossSettings | None = None,
    *,
    old_policy: int | Policy | None = None,
    current_policy: Policy | None = None,
    rollouts: Rollouts | None = None,
) -> Tensor:
    """f(w*) of replayed tokens, w* = pi_now / pi_past: w / (w + 0.1) by default (equation 4).

    The same values and gradients as inside the trainer's loss, which bounds log w at 20. Pass
    either two tensors, or two policies and the rollouts.

    Args:
        log_prob: float[B, T] under the current policy; gradients flow to it.
        past_log_prob: float[B, T] under the policy that generated the tokens.
        response_mask: [B, T]; default: every token.
        settings: `LossSettings(off_policy_reshape="no_reshape")` gives w itself.
        old_policy: the number of the newest policy that may have generated the rollouts,
            `buffer.policy_snapshot`; their own log-probs are then the past ones. Or a policy, which
            is called for them without a gradient.
        current_policy: called once for the log-probs of all rollouts, with a gradient: a callable
            or module, (prompts, tokens of each) -> float[B, T]; for a transformers model
            `exgrpo.buffer.policies.CausalPolicy`.
        rollouts: B rows (exgrpo.buffer.policies), such as `batch["rollouts"]`.

    Returns:
        float[B, T], 0 where masked.

    Raises:
        ValueError: one line with the name and what is allowed.
    """
    if not (old_policy is current_policy is rollouts is None):
        if not (log_prob is past_log_prob is response_mask is None):
            refuse_as("log_prob and old_policy", "be tensors, or policies and rollouts, not both")
        log_prob, past_log_prob, response_mask = policies.both_log_probs(
            old_policy, current_policy, rollouts
        )
    if log_prob is None or past_log_prob is None:
        missing = "log_prob" if log_prob is None else "past_log_prob"
        allowed = "must be given, log_prob and past_log_prob, or policies and rollouts"
        raise ValueError(f"{missing} is missing: {allowed}")
    rows = torch.ones(len(log_prob), dtype=torch.bool, device=log_prob.device)
    mask = torch.ones_like(log_prob, dtype=torch.bool) if response_mask is None else response_mask
    # with A = -1 the loss of a replayed token, -f(w*) A, is the weight
    minus_one = torch.full_like(log_prob, -1.0).detach()
    given = {"is_replayed": rows, "response_mask": mask, "settings": settings or LossSettings()}
    return mixed_token_losses(log_prob, past_log_prob, minus_one, **given)[0]


if TYPE_CHECKING:

    class Loss(Tensor):  # a plain Tensor with one attribute
        metrics: dict[str, Tensor]


def compute_grpo_loss(
    rollouts: Mapping[str, Any] | Rollouts,
    rewards: Tensor | Sequence[float],
    importance_weights: Tensor | None = None,
    *,
    current_policy: Policy | None = None,
    use_std: bool = False,
    length: int | None = None,
    settings: LossSettings | None = None,
) -> Loss:
    """The mixed-policy loss of equation 4 for whole groups, aggregated as in the trainer.

    Token losses are summed and divided by `length` and by the rows (verl's
    seq-mean-token-sum-norm); those of off_policy_loss=likelihood by the rows alone. Replayed rows
    of distinct questions, on their own, are groups of one row.

    Args:
        rollouts: log_prob, float[B, T] with gradient; old_log_prob, float[B, T] under the policy
            that generated each row's tokens; response_mask, [B, T]; group, as in
            `group_advantages`; optionally is_replayed, bool[B], and age, int[B], in steps, for a
            loss that takes `rows`. Or B rows (exgrpo.buffer.policies),
            grouped by prompt: the gradient comes from `current_policy` or from the rows' log_probs,
                and for replayed rows from `importance_weights`.
        rewards: [B]; with rows anything that can become a tensor.
        importance_weights: float[B, T] with a gradient, used instead of f(w*) for the replayed
            rows; the default is what `compute_importance_weights` returns. Entries of other rows
            are ignored.
        current_policy: with rows, as in `compute_importance_weights`.
        use_std: as in `group_advantages`.
        length: constant instead of T, the longest response allowed: padding has no effect.
        settings: variant of the loss; default: the paper's, which does not clip.

    Returns:
        The loss, a scalar tensor. Its attribute `metrics` has those of `mixed_token_losses`;
        tensors computed from it do not. Those named `replayed_*` describe the weights by
        `settings`; NaN for replayed rows with `importance_weights` but no `current_policy`.

    Raises:
        ValueError: one line with the key and what is allowed.
    """
    weights_only = False
    if not isinstance(rollouts, Mapping):
        rollouts, weights_only = policies.loss_tensors(rollouts, current_policy, importance_weights)
        rewards = torch.as_tensor(rewards, device=rollouts["log_prob"].device)
    elif current_policy is not None:
        refuse_as("current_policy is given with tensors", "come with rollouts as rows")
    batch = _checked(rollouts, rewards)
    log_prob, mask, is_replayed = batch["log_prob"], batch["response_mask"], batch["is_replayed"]
    advantages = group_advantages(rewards, batch["group"], use_std).to(log_prob.dtype)
    advantages = advantages[:, None].expand_as(log_prob)
    given = {"is_replayed": is_replayed, "response_mask": mask}
    settings, rows = settings or LossSettings(), None
    if "age" in batch:
        numbers = {key: number for number, key in enumerate(dict.fromkeys(batch["group"]))}
        group = torch.tensor([numbers[key] for key in batch["group"]], device=log_prob.device)
        rows = ReplayRows(torch.as_tensor(batch["age"])[:, None], group[:, None])
    losses, metrics = mixed_token_losses(
        log_prob, batch["old_log_prob"], advantages, **given, settings=settings, rows=rows
    )
    if importance_weights is not None:
        _check_weights(importance_weights, log_prob)
        replayed = is_replayed[:, None] & mask.bool()
        weights = torch.where(replayed, importance_weights, 0.0)
        losses = torch.where(replayed, -advantages * weights, losses)
    if weights_only:
        unknown = {name for name in metrics if name.startswith("replayed_")}
        unknown.remove("replayed_tokens_share")
        metrics |= dict.fromkeys(unknown, torch.full((), math.nan))
    rehearsed = losses.new_zeros(())
    if settings.off_policy_loss == LIKELIHOOD:
        rehearsed = losses[is_replayed].sum()
    rows_of_loss, longest = log_prob.shape[0], length or log_prob.shape[1]
    policy_loss = (losses.sum() - rehearsed) / (rows_of_loss * longest)
    whole = policy_loss + settings.likelihood_weight * rehearsed / rows_of_loss
    loss = cast("Loss", whole)
    loss.metrics = metrics
    return loss


def _checked(rollouts: Mapping[str, Any], rewards: Tensor) -> dict[str, Any]:
    """The rollouts with `is_replayed`; ValueError if keys or lengths are wrong."""
    for key in _ROLLOUT_KEYS[:-2]:
        if key not in rollouts:
            refuse_as(f"rollouts without {key!r}", f"have {', '.join(_ROLLOUT_KEYS[:-2])}")
    unknown = [key for key in rollouts if key not in _ROLLOUT_KEYS]
    if unknown:
        refuse_as(f"rollouts[{unknown[0]!r}]", f"be one of {', '.join(_ROLLOUT_KEYS)}")
    if len(rewards) != len(rollouts["log_prob"]):
        given = f"rewards has {len(rewards)} entries for {len(rollouts['log_prob'])} rows"
        raise ValueError(f"{given}: must be as many")
    none = torch.zeros(len(rewards), dtype=torch.bool, device=rollouts["log_prob"].device)
    return {"is_replayed": none, **rollouts}


def _check_weights(weights: Tensor, log_prob: Tensor) -> None:
    if weights.shape != log_prob.shape:
        shapes = f"{tuple(weights.shape)}: must be that of log_prob, {tuple(log_prob.shape)}"
        raise ValueError(f"importance_weights has shape {shapes}")
    if log_prob.requires_grad and not weights.requires_grad:
        allowed = "must have one, or replayed rows would teach nothing"
        raise ValueError(f"importance_weights has no gradient: {allowed}")
