"""Bayes@N (arXiv 2510.04265): what N samples of each question say about its chance of success, under a flat prior.

A question's outcomes are categories with weights, here wrong (0) and right (1). With a uniform Dirichlet prior, that is
one imagined outcome of each category, the posterior of the mean over questions has mean and variance in closed form.
The 95 % interval is the normal one, as in the paper, cut to the range of the weights. It speaks of these questions and
of the samples' chance alone; the bootstrap over questions speaks of other questions, too.

Array axes: Q questions, K categories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from eval.estimates import LEVEL, Scores

RIGHT_OR_WRONG = (0.0, 1.0)


@dataclass(frozen=True)
class Posterior:
    """Mean and standard deviation, and the ends of the 95 % credible interval."""

    value: float
    low: float
    high: float
    deviation: float


def posterior(counts_QK: NDArray[np.int64], weights_K: Sequence[float] = RIGHT_OR_WRONG) -> Posterior:
    """Of the mean weight over questions, given how often each question had each outcome."""
    weights = np.asarray(weights_K)
    total_Q = counts_QK.sum(axis=1) + len(weights)
    shares_QK = (counts_QK + 1) / total_Q[:, None]
    mean_Q = shares_QK @ weights
    variance_Q = (shares_QK @ weights**2 - mean_Q**2) / (total_Q + 1)
    return _interval(float(mean_Q.mean()), math.sqrt(float(variance_Q.sum())) / len(mean_Q), weights_K)


def of_scores(scores: Scores) -> Posterior:
    """Of a benchmark's Mean@n."""
    correct_Q = scores.correct()
    return posterior(np.stack([scores.samples - correct_Q, correct_Q], axis=1))


def mean(posteriors: Sequence[Posterior]) -> Posterior:
    """Of the mean over benchmarks, each weighing the same, whose samples are independent."""
    deviation = math.sqrt(sum(each.deviation**2 for each in posteriors)) / len(posteriors)
    return _interval(sum(each.value for each in posteriors) / len(posteriors), deviation, RIGHT_OR_WRONG)


def _interval(value: float, deviation: float, weights: Sequence[float]) -> Posterior:
    half = NormalDist().inv_cdf((1 + LEVEL) / 2) * deviation
    return Posterior(value, max(min(weights), value - half), min(max(weights), value + half), deviation)
