"""Which of a question's stored trajectories is replayed (section 3.2): the scores, and the choice by score."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.config import Metric, SelectMode


def mean_entropy(entropies_T: npt.ArrayLike, mask_T: npt.ArrayLike | None = None) -> float:
    """Mean token entropy of a response, H(o) = -1/|o| sum_t sum_v pi(v|.) log pi(v|.) (section 3.2), in nats.

    Args:
        entropies_T: [T], the entropy in nats of the policy's distribution at each token.
        mask_T: [T], true at response tokens; without it every entry is one. What it excludes may hold anything.

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
    """(sum w)^2 / (n sum w^2) of importance ratios w = exp(log_ratios): 1 if all are equal, 1/n if one rules.

    Args:
        log_ratios: [n], natural log; the largest may be any number.

    Raises:
        ValueError: not 1-D or empty.
    """
    values = _vector("log_ratios", log_ratios)
    weights = np.exp(values - values.max())
    return float(weights.sum() ** 2 / (values.size * np.square(weights).sum()))


class TrajectorySelector:
    """Chooses one candidate by its score: `ent` and `ppl` take the extreme score, `random` draws uniformly."""

    def __init__(self, metric: Metric, mode: SelectMode) -> None:
        if metric not in ("ent", "ppl", "random"):
            raise ValueError(f"metric={metric}: must be one of ent, ppl, random")
        if mode not in ("argmin", "argmax"):
            raise ValueError(f"mode={mode}: must be one of argmin, argmax")
        self._metric = metric
        self._mode = mode

    @property
    def needs_scores(self) -> bool:
        """False if the choice ignores the scores, so that nobody computes them."""
        return self._metric != "random"

    def choose(self, scores: npt.ArrayLike, rng: np.random.Generator) -> int:
        """Index of the chosen candidate; ties go to the first, a NaN score is never chosen.

        Args:
            scores: [candidates], the metric under the current policy; `random` uses only their number.
            rng: used by `random` alone; the other metrics leave its state as it is.

        Raises:
            ValueError: no candidates, or no score but NaN.
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
