"""The metrics of an update, from sums and counts to be added over its parts.

A mean of means is wrong if the parts differ in size: a micro-batch without a replayed row would
count as a ratio of 0. So the actor reports sums under ``actor/sum/``, verl's reductions scale them
all equally, and the trainer divides once. The formulas are plain arithmetic, the same for torch
scalars in the loss and for floats in the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

SUM = "actor/sum/"
MAXIMUM = "replayed_ratio_max"
ENTROPY, ENTROPY_TOKENS = "entropy", "entropy_tokens"


def means_of(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics by the names in docs/metrics.md; 0 for no tokens. Any common factor cancels.

    ``replayed_ess``, the weights' effective sample size, is (sum w)^2 / (n sum w^2).
    """
    fresh, replayed, weights = sums["fresh_tokens"], sums["replayed_tokens"], sums["replayed_ratio"]
    return {
        "fresh_loss": _share(sums["fresh_loss"], fresh),
        "fresh_ratio_mean": _share(sums["fresh_ratio"], fresh),
        "fresh_clipfrac": _share(sums["fresh_clipped"], fresh),
        "ppo_kl": -_share(sums["fresh_log_ratio"], fresh),
        "replayed_loss": _share(sums["replayed_loss"], replayed),
        "replayed_tokens_share": _share(replayed, fresh + replayed),
        "replayed_ratio_mean": _share(weights, replayed),
        MAXIMUM: sums[MAXIMUM],
        "replayed_shaped_mean": _share(sums["replayed_shaped"], replayed),
        "replayed_ess": _share(weights * weights, replayed * sums["replayed_square"]),
    }


def _share(part: Any, whole: Any) -> Any:
    return part / (whole + (whole == 0))


def finish(metrics: MutableMapping[str, Any]) -> None:
    """Replace a step's reduced sums by their metrics, in place; does nothing if there are none."""
    names = [name for name in metrics if name.startswith(SUM)]
    sums = {name.removeprefix(SUM): metrics.pop(name) for name in names}
    if ENTROPY in sums:
        metrics["actor/entropy_loss"] = _share(sums[ENTROPY], sums[ENTROPY_TOKENS])
    if "fresh_tokens" in sums:
        sums[MAXIMUM] = metrics[f"actor/{MAXIMUM}"]
        metrics.update({f"actor/{name}": value for name, value in means_of(sums).items()})


def unscale_entropy(metrics: dict[str, Any], config: Any) -> None:
    """Undo verl's division of the log-prob pass's entropy by the loss's scale, in place."""
    actor, length = config.actor_rollout_ref.actor, config.data.max_response_length
    # rollout correction may leave out the pass
    if actor.loss_agg_mode == "seq-mean-token-sum-norm" and "actor/entropy" in metrics:
        metrics["actor/entropy"] *= (actor.loss_scale_factor or length) / length
