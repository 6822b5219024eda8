"""Bayes@N (arXiv 2510.04265): the posterior of the success probability after N samples per
question, with a flat prior.

A question's outcomes are categories with weights, here wrong (0) and right (1). With a uniform
Dirichlet prior, which counts as one outcome of each category, the posterior of the mean over
questions has its mean and variance in closed form. The 95 % interval is the normal approximation,
as in the paper, clipped to the range of the weights. It covers the randomness of the samples for
these questions only; the bootstrap over questions also covers other questions.

The posterior mean of a question is (N x mean + K x prior mean) / (N + K): the prior weighs K
samples, for K categories. A posterior that the prior decides says little of a run: one of four
right samples would be .333. `of_scores` leaves it out unless the samples weigh nine times as much,
N >= 9 K = 18, and its interval includes Mean@n, from which only the prior moves it: the shift K /
(N + K) |mean - 1/2| stays while more questions narrow the interval.

Array axes: Q questions, K categories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from exgrpo_eval.estimate.estimates import LEVEL, Scores

RIGHT_OR_WRONG = (0.0, 1.0)
PRIOR_SHARE = 0.1  # the most that the prior may weigh, of prior and samples together


@dataclass(frozen=True)
class Posterior:
    """Mean, ends of the 95 % credible interval, and standard deviation."""

    value: float
    low: float
    high: float
    deviation: float


def posterior(
    counts_QK: NDArray[np.int64], weights_K: Sequence[float] = RIGHT_OR_WRONG
) -> Posterior:
    """The posterior of the mean weight over questions, given how often each question had each
    outcome.
    """
    weights = np.asarray(weights_K)
    total_Q = counts_QK.sum(axis=1) + len(weights)
    shares_QK = (counts_QK + 1) / total_Q[:, None]
    mean_Q = shares_QK @ weights
    variance_Q = (shares_QK @ weights**2 - mean_Q**2) / (total_Q + 1)
    return _interval(
        float(mean_Q.mean()), math.sqrt(float(variance_Q.sum())) / len(mean_Q), weights_K
    )


def of_scores(scores: Scores) -> Posterior | None:
    """The posterior of a benchmark's Mean@n; None if the prior decides it."""
    categories = len(RIGHT_OR_WRONG)
    if categories / (scores.samples + categories) > PRIOR_SHARE:
        return None
    correct_Q = scores.correct()
    found = posterior(np.stack([scores.samples - correct_Q, correct_Q], axis=1))
    return _around(float(scores.column("mean").mean()), found)


def mean(posteriors: Sequence[Posterior | None], mean_at_n: float) -> Posterior | None:
    """The posterior of the unweighted mean over benchmarks, whose samples are independent; None if
    the prior decides it, or one of them.
    """
    known = [benchmark for benchmark in posteriors if benchmark is not None]
    if len(known) < len(posteriors):
        return None
    value = sum(benchmark.value for benchmark in known) / len(known)
    deviation = math.sqrt(sum(benchmark.deviation**2 for benchmark in known)) / len(known)
    return _around(mean_at_n, _interval(value, deviation, RIGHT_OR_WRONG))


def _around(mean_at_n: float, found: Posterior) -> Posterior | None:
    return found if found.low <= mean_at_n <= found.high else None


def _interval(value: float, deviation: float, weights: Sequence[float]) -> Posterior:
    half_width = NormalDist().inv_cdf((1 + LEVEL) / 2) * deviation
    low = max(min(weights), value - half_width)
    high = min(max(weights), value + half_width)
    return Posterior(value, low, high, deviation)
