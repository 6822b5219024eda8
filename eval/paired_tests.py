"""Is the difference of two runs more than chance? Tests paired by question, and what could have been seen at all.

The test flips signs: if the runs are alike, each question's difference could as well have the other sign. Differences
are whole numbers of right samples, so the distribution of their sum over all flips is known exactly, without draws and
without an assumption on how hard questions are. With one sample a question this is McNemar's exact test. Its p value is
the mid-p one, in which the observed sum itself counts half: the full one rejects too seldom, since sums are discrete.

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

from eval.estimates import OVERALL, Floats, Scores, cluster_sums, generator, numbered

LEVEL = 0.05  # of a test, two-sided
POWER = 0.8
FLIPS = 20_000  # drawn for the mean over benchmarks, whose differences have no common unit
CHUNK = 4_000_000  # signs held in memory at a time
Whole: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class PairedTest:
    """A difference of Mean@n; `corrected` is None where it is not one of several that are looked at side by side.

    `resolvable`: the smallest true difference that a test at 5 % finds with 80 % power, given how much the questions'
    differences vary; None where they do not vary.
    """

    difference: float
    p: float
    corrected: float | None
    resolvable: float | None


def sign_flip(differences_C: Whole) -> float:
    """Two-sided mid-p value of the sum of whole differences, exactly, over all choices of their signs."""
    sizes = np.abs(differences_C[differences_C != 0])
    if not len(sizes):
        return 1.0
    sizes = sizes // np.gcd.reduce(sizes)
    total, observed = int(sizes.sum()), abs(int((np.sign(differences_C[differences_C != 0]) * sizes).sum()))
    lower_sum = (total - observed) // 2  # of the sizes whose sign is the rarer one
    chances = _subset_sums(sizes, total)
    return float(min(1.0, 2 * chances[:lower_sum].sum() + chances[lower_sum]))


def _subset_sums(sizes: Whole, total: int) -> Floats:
    """Chance of each sum, 0 to `total`, of the sizes that fair coins choose.

    A sum's generating function is the product of (1 + z^size) / 2. It is taken at the roots of unity and transformed
    back, which leaves errors of 1e-15 and needs one power for each distinct size.
    """
    points = total + 1
    k = np.arange(points // 2 + 1)
    transformed = np.exp(-1j * math.pi * k * total / points)
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        transformed *= np.cos(math.pi * size * k / points) ** int(count)
    return np.clip(np.fft.irfft(transformed, points), 0, 1)


def drawn_sign_flip(differences_C: Floats, rng: np.random.Generator, flips: int = FLIPS) -> float:
    """Two-sided mid-p value of the sum of any differences, by so many random choices of their signs."""
    observed, near = abs(differences_C.sum()), 1e-12
    if observed < near:
        return 1.0
    chunk = max(1, CHUNK // len(differences_C))
    as_large = 0.0
    for start in range(0, flips, chunk):
        signs = 2 * rng.integers(0, 2, size=(min(chunk, flips - start), len(differences_C)), dtype=np.int8) - 1
        sums = np.abs(signs @ differences_C)
        larger, at_least = (sums > observed + near).sum(), (sums > observed - near).sum()
        as_large += float(larger + at_least) / 2
    return (1 + as_large) / (1 + flips)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values, corrected so that the chance of any false finding among them is at most the level (Holm 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - rank) * p_values[place])
        corrected[place] = min(1.0, largest)
    return corrected


def quantiles(level: float = LEVEL, power: float = POWER) -> float:
    """How many standard errors a true difference must measure for a two-sided test to have this power."""
    return NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(power)


def standard_error(values_Q: Floats, clusters: Sequence[str]) -> float | None:
    """Of the mean over questions, by cluster; None of a single cluster."""
    numbers_Q = numbered(clusters)
    count = int(numbers_Q.max()) + 1
    if count < 2:
        return None
    sums_C1, _ = cluster_sums((values_Q - values_Q.mean())[:, None], numbers_Q, count)
    return math.sqrt(float((sums_C1**2).sum()) * count / (count - 1)) / len(values_Q)


def compare(first: Mapping[str, Scores], other: Mapping[str, Scores]) -> dict[str, PairedTest]:
    """Benchmark -> test of the other's Mean@n less the first's, corrected over benchmarks; ``overall`` of their mean.

    Args:
        first: with the same benchmarks and questions as `other`, in the same order.
    """
    p_values = {name: sign_flip(_whole(mine, other[name])) for name, mine in first.items()}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True)) if len(p_values) > 1 else {}
    tests = {}
    for name, p in p_values.items():
        values_Q = _differences(first[name], other[name])
        resolvable = _resolvable(standard_error(values_Q, first[name].clusters))
        tests[name] = PairedTest(float(values_Q.mean()), p, corrected.get(name), resolvable)
    return tests | {OVERALL: _overall(first, other, tests)}


def _whole(mine: Scores, theirs: Scores) -> Whole:
    """Each cluster's difference in a unit that makes it a whole number."""
    unit = math.lcm(mine.samples, theirs.samples)
    numbers_Q = numbered(mine.clusters)
    differences_C: Whole = np.zeros(int(numbers_Q.max()) + 1, dtype=np.int64)
    each_Q = theirs.correct() * (unit // theirs.samples) - mine.correct() * (unit // mine.samples)
    np.add.at(differences_C, numbers_Q, each_Q)
    return differences_C


def _differences(mine: Scores, theirs: Scores) -> Floats:
    return theirs.column("mean") - mine.column("mean")


def _overall(first: Mapping[str, Scores], other: Mapping[str, Scores], tests: Mapping[str, PairedTest]) -> PairedTest:
    """Of the mean over benchmarks: a cluster that several of them hold is flipped, and counted, once."""
    if len(tests) == 1:
        return next(iter(tests.values()))
    shares = []
    for name, mine in first.items():
        shares.append(_differences(mine, other[name]) / (len(mine.questions) * len(first)))
    clusters = [cluster for mine in first.values() for cluster in mine.clusters]
    numbers = numbered(clusters)
    sums_C = cluster_sums(np.concatenate(shares)[:, None], numbers, int(numbers.max()) + 1)[0][:, 0]
    centred = [(share - share.mean()) * math.sqrt(len(share) / max(1, len(share) - 1)) for share in shares]
    centred_C = cluster_sums(np.concatenate(centred)[:, None], numbers, len(sums_C))[0][:, 0]
    error = math.sqrt(float((centred_C**2).sum()))
    p = drawn_sign_flip(sums_C, generator(0, OVERALL))
    return PairedTest(float(sums_C.sum()), p, None, _resolvable(error))


def _resolvable(error: float | None) -> float | None:
    return quantiles() * error if error else None
