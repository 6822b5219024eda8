"""Is the difference of two runs more than chance? Tests paired by question, and the smallest
resolvable difference.

The test flips signs: if the runs are equally good, each question's difference is as likely to have
the other sign. Differences are whole numbers of right samples, so the distribution of their sum
over all flips is computed exactly, without random draws and without an assumption about the
questions' difficulty. With one sample per question this is McNemar's exact test. The p value is the
mid-p value, in which the observed sum itself counts half: the full p value rejects too seldom,
since sums are discrete.

Array axes: C clusters of questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from exgrpo_eval.estimate.estimates import (
    OVERALL,
    Floats,
    Scores,
    cluster_sums,
    generator,
    numbered,
)

LEVEL = 0.05  # of a test, two-sided
POWER = 0.8
FLIPS = 20_000  # random flips for the mean over benchmarks, whose differences have no common unit
CHUNK = 4_000_000  # signs in memory at a time
Whole: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class PairedTest:
    """A difference of Mean@n and its p value; `corrected` is None if the difference is the only one
    of a comparison.

    `resolvable`: the smallest true difference that a test at 5 % finds with 80 % power, given how
    much the questions'
    differences vary; None if they do not vary.
    """

    difference: float
    p: float
    corrected: float | None
    resolvable: float | None


def sign_flip(differences_C: Whole) -> float:
    """Exact two-sided mid-p value of the sum of whole differences, over all choices of
    their signs.
    """
    nonzero_C = differences_C[differences_C != 0]
    if not len(nonzero_C):
        return 1.0
    nonzero_C = nonzero_C // np.gcd.reduce(nonzero_C)
    sizes_C = np.abs(nonzero_C)
    total, observed = int(sizes_C.sum()), abs(int(nonzero_C.sum()))
    lower_sum = (
        total - observed
    ) // 2  # the sum of the sizes with the sign that the observed sum does not have
    probabilities = _subset_sums(sizes_C, total)
    return float(min(1.0, 2 * probabilities[:lower_sum].sum() + probabilities[lower_sum]))


def _subset_sums(sizes: Whole, total: int) -> Floats:
    """Probability of each sum, 0 to `total`, of the sizes if a fair coin includes or omits each.

    The probability generating function of the sum is the product of (1 + z^size) / 2. It is
    evaluated at the roots of unity and transformed back, with errors of about 1e-15 and one power
    for each distinct size.
    """
    points = total + 1
    k = np.arange(points // 2 + 1)
    transformed = np.exp(-1j * math.pi * k * total / points)
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        transformed *= np.cos(math.pi * size * k / points) ** int(count)
    return np.clip(np.fft.irfft(transformed, points), 0, 1)


def drawn_sign_flip(differences_C: Floats, rng: np.random.Generator, flips: int = FLIPS) -> float:
    """Two-sided mid-p value of the sum of any differences, from this many random choices of their
    signs.
    """
    observed, tolerance = abs(differences_C.sum()), 1e-12
    if observed < tolerance:
        return 1.0
    chunk = max(1, CHUNK // len(differences_C))
    as_large = 0.0
    for start in range(0, flips, chunk):
        size = min(chunk, flips - start)
        signs_BC = 2 * rng.integers(0, 2, size=(size, len(differences_C)), dtype=np.int8) - 1
        sums_B = np.abs(signs_BC @ differences_C)
        larger = (sums_B > observed + tolerance).sum()
        at_least = (sums_B > observed - tolerance).sum()
        as_large += float(larger + at_least) / 2
    return (1 + as_large) / (1 + flips)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values, corrected so that the probability of any false rejection is at most the level
    (Holm 1979).
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        corrected[index] = min(1.0, largest)
    return corrected


def quantiles(level: float = LEVEL, power: float = POWER) -> float:
    """The number of standard errors that a true difference must have for a two-sided test to have
    this power.
    """
    return NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(power)


def standard_error(values_Q: Floats, clusters: Sequence[str]) -> float | None:
    """Cluster-robust standard error of the mean over questions; None for a single cluster."""
    numbers_Q = numbered(clusters)
    count = int(numbers_Q.max()) + 1
    if count < 2:
        return None
    sums_C1, _ = cluster_sums((values_Q - values_Q.mean())[:, None], numbers_Q, count)
    return math.sqrt(float((sums_C1**2).sum()) * count / (count - 1)) / len(values_Q)


def compare(first: Mapping[str, Scores], other: Mapping[str, Scores]) -> dict[str, PairedTest]:
    """Benchmark -> test of the other's Mean@n minus the first's, corrected over benchmarks;
    ``overall``: of their mean.

    Args:
        first: has the same benchmarks and questions as `other`, in the same order.
    """
    p_values = {name: sign_flip(_whole(scores, other[name])) for name, scores in first.items()}
    corrected: dict[str, float] = {}
    if len(p_values) > 1:
        corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    tests = {}
    for name, p in p_values.items():
        values_Q = _differences(first[name], other[name])
        resolvable = _resolvable(standard_error(values_Q, first[name].clusters))
        tests[name] = PairedTest(float(values_Q.mean()), p, corrected.get(name), resolvable)
    return tests | {OVERALL: _overall(first, other, tests)}


def _whole(first: Scores, other: Scores) -> Whole:
    """Each cluster's difference, in a unit that makes it a whole number."""
    unit = math.lcm(first.samples, other.samples)
    numbers_Q = numbered(first.clusters)
    differences_C: Whole = np.zeros(int(numbers_Q.max()) + 1, dtype=np.int64)
    differences_Q = other.correct() * (unit // other.samples) - first.correct() * (
        unit // first.samples
    )
    np.add.at(differences_C, numbers_Q, differences_Q)
    return differences_C


def _differences(first: Scores, other: Scores) -> Floats:
    return other.column("mean") - first.column("mean")


def _overall(
    first: Mapping[str, Scores], other: Mapping[str, Scores], tests: Mapping[str, PairedTest]
) -> PairedTest:
    """The test of the mean over benchmarks; a cluster that several benchmarks have is flipped and
    counted once.
    """
    if len(tests) == 1:
        return next(iter(tests.values()))
    shares = []  # each question's contribution to the mean, an array per benchmark
    for name, scores in first.items():
        shares.append(_differences(scores, other[name]) / (len(scores.questions) * len(first)))
    clusters = [cluster for scores in first.values() for cluster in scores.clusters]
    numbers = numbered(clusters)
    sums_C = cluster_sums(np.concatenate(shares)[:, None], numbers, int(numbers.max()) + 1)[0][:, 0]
    centred = [
        (share - share.mean()) * math.sqrt(len(share) / max(1, len(share) - 1)) for share in shares
    ]
    centred_C = cluster_sums(np.concatenate(centred)[:, None], numbers, len(sums_C))[0][:, 0]
    error = math.sqrt(float((centred_C**2).sum()))
    p = drawn_sign_flip(sums_C, generator(0, OVERALL))
    return PairedTest(float(sums_C.sum()), p, None, _resolvable(error))


def _resolvable(error: float | None) -> float | None:
    return quantiles() * error if error else None
