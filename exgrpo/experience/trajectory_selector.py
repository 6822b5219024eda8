"""Which of a question's stored trajectories is replayed (section 3.2): the scores, and the choice by score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.rules import METRICS, Metric
from exgrpo.experience.trajectory import Trajectory

RANDOM = "random"  # the metric that needs no scores


def mean_entropy(entropies_T: npt.ArrayLike, mask_T: npt.ArrayLike | None = None) -> float:
    """Mean token entropy of a response, H(o) = -1/|o| sum_t sum_v pi(v|.) log pi(v|.) (section 3.2), in nats.

    Args:
        entropies_T: [T], the entropy in nats of the policy's distribution at each token.
        mask_T: [T], true at response tokens; default: all are. Excluded entries may hold any value.

    Raises:
        ValueError: shapes differ, or no response token is left.
    """
    values_T = _vector("entropies", entropies_T)
    if mask_T is not None:
        keep_T = np.asarray(mask_T).astype(bool)
        if keep_T.shape != values_T.shape:
            raise ValueError(f"mask has shape {keep_T.shape}: must be that of entropies, {values_T.shape}")
        values_T = values_T[keep_T]
    if values_T.size == 0:
        raise ValueError("mask excludes every token: must keep at least one")
    return float(values_T.mean())


def perplexity(log_probs_T: npt.ArrayLike) -> float:
    """exp of the mean negative log-likelihood, exp(-1/|o| sum_t log pi(o_t|.)) (section F.3); 1 or more.

    Args:
        log_probs_T: [T], natural log-probs of the response's tokens.

    Raises:
        ValueError: not 1-D or empty.
    """
    return float(np.exp(-_vector("log_probs", log_probs_T).mean()))


def effective_sample_size(log_ratios: npt.ArrayLike) -> float:
    """(sum w)^2 / (n sum w^2) of importance ratios w = exp(log_ratios): 1 if all are equal, 1/n if one dominates.

    Args:
        log_ratios: [n], natural log; the largest may be any number.

    Raises:
        ValueError: not 1-D or empty.
    """
    values = _vector("log_ratios", log_ratios)
    weights = np.exp(values - values.max())
    return float(weights.sum() ** 2 / (values.size * np.square(weights).sum()))


class TrajectorySelector:
    """Chooses one candidate by its score.

    Args:
        metric: a name in exgrpo.experience.rules.METRICS (ent, ppl) or a reference to your own; or `random`, which
            draws uniformly.
        mode: whether the lowest score wins (`argmin`) or the highest (`argmax`).
    """

    def __init__(self, metric: str, mode: str) -> None:
        self.metric = None if metric == RANDOM else METRICS.load("metric", metric)
        if mode not in ("argmin", "argmax"):
            raise ValueError(f"mode={mode}: must be one of argmin, argmax")
        self._mode = mode

    @property
    def needs_scores(self) -> bool:
        """False if the choice ignores the scores, so that they need not be computed."""
        return self.metric is not None

    def promising(self, candidates: Sequence[Trajectory], limit: int | None) -> tuple[Trajectory, ...]:
        """The `limit` candidates with the best recorded scores, in their original order; an unknown score is the best.

        A recorded score is the metric under the policy that generated the trajectory: it is free, but does not reflect
        what the policy has learnt since. Only the mean entropy was recorded; it stands for the entropy of each token.

        Args:
            limit: None keeps all, and so does the metric `random`.
        """
        if limit is None or len(candidates) <= limit or self.metric is None:
            return tuple(candidates)
        recorded = np.array([self._recorded(self.metric, trajectory) for trajectory in candidates])
        recorded = recorded if self._mode == "argmin" else -recorded
        best = np.argsort(np.where(np.isnan(recorded), -np.inf, recorded), kind="stable")[:limit]
        return tuple(candidates[position] for position in sorted(best.tolist()))

    def _recorded(self, metric: Metric, trajectory: Trajectory) -> float:
        log_probs_T = trajectory.of_actions(trajectory.log_probs)
        return metric(np.broadcast_to(trajectory.entropy, log_probs_T.shape), log_probs_T, trajectory)

    def choose(self, scores: npt.ArrayLike, rng: np.random.Generator) -> int:
        """Index of the chosen candidate; ties go to the first, a NaN score is never chosen.

        Args:
            scores: [candidates], the metric under the current policy; `random` uses only their number.
            rng: used by `random` only; the other metrics do not advance it.

        Raises:
            ValueError: there are no candidates, or all scores are NaN.
        """
        values = _vector("scores", scores)
        if not self.needs_scores:
            return int(rng.integers(values.size))
        known = np.flatnonzero(~np.isnan(values))  # np.nanargmin would take a NaN for an infinite score
        if known.size == 0:
            raise ValueError(f"scores of {values.size} candidates are all NaN: must hold at least one number")
        best = values[known].argmin() if self._mode == "argmin" else values[known].argmax()
        return int(known[best])


def _vector(name: str, values: Any) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: must be 1-D and not empty")
    return array
