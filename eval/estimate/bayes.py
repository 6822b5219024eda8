"""Bayes@N (arXiv 2510.04265): the posterior of the success probability after N samples per question, with a flat prior.

A question's outcomes are categories with weights, here wrong (0) and right (1). With a uniform Dirichlet prior, which
counts as one outcome of each category, the posterior of the mean over questions has its mean and variance in closed
form. The 95 % interval is the normal approximation, as in the paper, clipped to the range of the weights. It covers the
randomness of the samples for these questions only; the bootstrap over questions also covers other questions.

Array axes: Q questions, K categories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from eval.estimate.estimates import LEVEL, Scores

RIGHT_OR_WRONG = (0.0, 1.0)


@dataclass(frozen=True)
class Posterior:
    """Mean, ends of the 95 % credible interval, and standard deviation."""

    value: float
    low: float
    high: float
    deviation: float


def posterior(counts_QK: NDArray[np.int64], weights_K: Sequence[float] = RIGHT_OR_WRONG) -> Posterior:
    """The posterior of the mean weight over questions, given how often each question had each outcome."""
    weights = np.asarray(weights_K)
    total_Q = counts_QK.sum(axis=1) + len(weights)
    shares_QK = (counts_QK + 1) / total_Q[:, None]
    mean_Q = shares_QK @ weights
    variance_Q = (shares_QK @ weights**2 - mean_Q**2) / (total_Q + 1)
    return _interval(float(mean_Q.mean()), math.sqrt(float(variance_Q.sum())) / len(mean_Q), weights_K)


def of_scores(scores: Scores) -> Posterior:
    """The posterior of a benchmark's Mean@n."""
    correct_Q = scores.correct()
    return posterior(np.stack([scores.samples - correct_Q, correct_Q], axis=1))


def mean(posteriors: Sequence[Posterior]) -> Posterior:
    """The posterior of the unweighted mean over benchmarks, whose samples are independent."""
    value = sum(benchmark.value for benchmark in posteriors) / len(posteriors)
    deviation = math.sqrt(sum(benchmark.deviation**2 for benchmark in posteriors)) / len(posteriors)
    return _interval(value, deviation, RIGHT_OR_WRONG)


def _interval(value: float, deviation: float, weights: Sequence[float]) -> Posterior:
    half_width = NormalDist().inv_cdf((1 + LEVEL) / 2) * deviation
    low = max(min(weights), value - half_width)
    high = min(max(weights), value + half_width)
    return Posterior(value, low, high, deviation)
