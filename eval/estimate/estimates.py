"""Estimates from a benchmark's samples: Mean@n, Best@n, pass@k and majority@n, each with a 95 %
interval.

Each of them is a mean over questions of a per-question value, so one bootstrap serves all:
questions are drawn with replacement, and the interval is between the 2.5 and 97.5 percentiles of
the means. It shows how much another draw of similar questions could differ. Where it cannot,
because too few questions differ (`too_few`), the interval is Wilson's.

Questions that are not independent are drawn together, as a cluster: equal texts with different gold
answers, questions that several benchmarks have (in the mean over benchmarks), and those with an
equal `cluster` in their rows.

Array axes: Q questions, C clusters, M metrics, B bootstrap draws.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
LEVEL = 0.95
ENOUGH = 5  # clusters with a right response, and as many with a wrong one: what a bootstrap needs
ROUNDING = 1e-12  # means of clusters that differ by less are alike
CHUNK = 4_000_000  # draws times questions in memory at a time
OVERALL = "overall"
Floats: TypeAlias = NDArray[np.float64]
QuestionKey = tuple[str, str]  # question_id, gold answer


@dataclass(frozen=True)
class Estimate:
    """A mean over questions and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """A benchmark's questions with their values; `values_QM` has a column for each of `metrics`.

    `clusters`: the name of each question's cluster. `least`: the smallest value that is possible,
    -1 for the
    differences of two runs; the largest is 1.
    """

    questions: tuple[QuestionKey, ...]
    clusters: tuple[str, ...]
    samples: int
    metrics: tuple[str, ...]
    values_QM: Floats
    least: float = 0.0

    def column(self, metric: str) -> Floats:
        """Each question's value of a metric."""
        return self.values_QM[:, self.metrics.index(metric)]

    def cluster_means(self) -> Floats:
        """The means of each cluster, C x M."""
        numbers_Q = numbered(self.clusters)
        sums_CM, sizes_C = cluster_sums(self.values_QM, numbers_Q, int(numbers_Q.max()) + 1)
        means_CM: Floats = sums_CM / sizes_C[:, None]
        return means_CM

    def correct(self) -> NDArray[np.int64]:
        """Each question's number of correct samples."""
        return np.rint(self.column("mean") * self.samples).astype(np.int64)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that k samples drawn without replacement include a correct one (arXiv 2107.03374,
    eq. 1).
    """
    return 1 - comb(samples - correct, k) / comb(samples, k)


def majority(votes: Iterable[tuple[str | None, bool]]) -> float:
    """Probability that the most frequent answer is correct, with ties broken at random.

    Args:
        votes: each sample's answer, None if it has none, and whether it is correct.
    """
    counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for answer, correct in votes:
        if answer is not None:
            counts[answer] += 1
            right[answer] += correct
    most = max(counts.values(), default=0)
    shares = [right[answer] / most for answer, count in counts.items() if count == most]
    return sum(shares) / len(shares) if shares else 0.0


def powers_of_two(samples: int) -> list[int]:
    """1, 2, 4, ... up to the number of samples."""
    return [1 << power for power in range(samples.bit_length())]


def score(rows: Sequence[Mapping[str, Any]]) -> dict[str, Scores]:
    """Graded rows -> each benchmark's scores, in the order of the rows.

    Metrics are ``mean``, ``best``, ``majority`` and ``pass@k`` for the powers of two up to the
    number of samples. A question's cluster is its question_id if its rows have no ``cluster``.

    Raises:
        ValueError: questions of one benchmark differ in their number of samples.
    """
    benchmarks: dict[str, dict[QuestionKey, list[Mapping[str, Any]]]] = {}
    for row in rows:
        question = (row["question_id"], row["answer"])
        benchmarks.setdefault(row["benchmark"], {}).setdefault(question, []).append(row)
    return {name: _score(name, questions) for name, questions in benchmarks.items()}


def _score(name: str, questions: Mapping[QuestionKey, Sequence[Mapping[str, Any]]]) -> Scores:
    counts = sorted({len(rows) for rows in questions.values()})
    if len(counts) > 1:
        raise ValueError(
            f"benchmark={name}: {counts[0]} to {counts[-1]} samples per question: must be "
            "the same number for all"
        )
    samples, ks = counts[0], powers_of_two(counts[0])
    clusters = tuple(
        str(rows[0].get("cluster", rows[0]["question_id"])) for rows in questions.values()
    )
    values = []
    for rows in questions.values():
        correct = sum(row["correct"] for row in rows)
        votes = majority((row["vote"], row["correct"]) for row in rows)
        values.append(
            [
                correct / samples,
                float(correct > 0),
                votes,
                *(pass_at_k(samples, correct, k) for k in ks),
            ]
        )
    metrics = ("mean", "best", "majority", *(f"pass@{k}" for k in ks))
    return Scores(tuple(questions), clusters, samples, metrics, np.array(values))


def numbered(clusters: Sequence[str]) -> NDArray[np.int64]:
    """Each question's cluster as a number, from 0 in the order in which they appear."""
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return np.array([numbers[cluster] for cluster in clusters])


def cluster_sums(
    values_QM: Floats, numbers_Q: NDArray[np.int64], clusters: int
) -> tuple[Floats, Floats]:
    """Sums of the values over each cluster's questions, C x M, and the number of its questions."""
    sums_CM = np.zeros((clusters, values_QM.shape[1]))
    np.add.at(sums_CM, numbers_Q, values_QM)
    return sums_CM, np.bincount(numbers_Q, minlength=clusters).astype(np.float64)


def bootstrap(
    values_QM: Floats,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    clusters: Sequence[str] | None = None,
) -> Floats:
    """Means over questions, whose clusters are drawn with replacement, B x M; all columns use the
    same draws.

    Args:
        clusters: the name of each question's cluster; None if each question is its own.
    """
    numbers_Q = np.arange(len(values_QM)) if clusters is None else numbered(clusters)
    [means_BM] = _bootstrap([values_QM], [numbers_Q], rng, resamples)
    return means_BM


def _bootstrap(
    values: Sequence[Floats],
    numbers: Sequence[NDArray[np.int64]],
    rng: np.random.Generator,
    resamples: int,
) -> list[Floats]:
    """The means of each benchmark, B x M, over the same draws of clusters."""
    clusters = 1 + max(int(numbers_Q.max()) for numbers_Q in numbers)
    sums = [cluster_sums(*each, clusters) for each in zip(values, numbers, strict=True)]
    chunk = max(1, CHUNK // clusters)
    means: list[list[Floats]] = [[] for _ in values]
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        drawn_BC = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=size)
        for (sums_CM, sizes_C), benchmark_means in zip(sums, means, strict=True):
            questions_B1 = (drawn_BC @ sizes_C)[:, None]
            # a draw may have no question of a small benchmark: its mean over all questions is used
            missed_M = sums_CM.sum(axis=0) / sizes_C.sum()
            benchmark_means.append(
                np.where(
                    questions_B1 > 0, drawn_BC @ sums_CM / np.maximum(questions_B1, 1), missed_M
                )
            )
    return [np.concatenate(benchmark_means) for benchmark_means in means]


def generator(seed: int, name: str) -> np.random.Generator:
    """The random generator of a benchmark; independent of the other benchmarks."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def percentiles(values_M: Floats, means_BM: Floats) -> list[Estimate]:
    """Each metric's value with the percentiles of its bootstrap means."""
    tail = 100 * (1 - LEVEL) / 2
    low_M, high_M = np.percentile(means_BM, [tail, 100 - tail], axis=0)
    return [
        Estimate(float(v), float(low), float(high))
        for v, low, high in zip(values_M, low_M, high_M, strict=True)
    ]


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` (Newcombe 1998, method 3).

    A value between 0 and 1 varies no more than a right or wrong one with the same mean, so it holds
    for means, too.
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    centre = share + z**2 / (2 * count)
    half = z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    low, high = ((centre + side * half) / (1 + z**2 / count) for side in (-1, 1))
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def too_few(values_C: Floats, least: float = 0.0) -> bool:
    """Whether a bootstrap of these clusters' means is too narrow: all are alike; or, of values from
    0 to 1, there are fewer than ten clusters, or fewer than five with a right response, or with a
    wrong one.
    """
    if np.ptp(values_C) < ROUNDING:
        return True
    some_right, some_wrong = int((values_C > 0).sum()), int((values_C < 1).sum())
    return least == 0 and min(some_right, some_wrong, len(values_C) // 2) < ENOUGH


def alike(value: float, clusters: int, least: float = 0.0) -> Estimate:
    """The interval where all clusters have one value: as many as Wilson's bound for 0 of them may
    have another, at worst `least` or 1. For the values 0 and 1 it is Wilson's interval.
    """
    others = wilson(0.0, clusters)[1]
    return Estimate(value, value - others * (value - least), value + others * (1 - value))


def intervals(scores: Scores, means_BM: Floats) -> list[Estimate]:
    """Each metric's mean with its interval, from the bootstrap means of these scores."""
    found = percentiles(scores.values_QM.mean(axis=0), means_BM)
    for place, values_C in enumerate(scores.cluster_means().T):
        value = found[place].value
        if np.ptp(values_C) < ROUNDING:
            found[place] = alike(value, len(values_C), scores.least)
        elif too_few(values_C, scores.least):
            found[place] = Estimate(value, *wilson(value, len(values_C)))
    return found


def mean_of(groups: Sequence[Sequence[Estimate]]) -> Estimate:
    """The unweighted mean of estimates. Its distances to both ends are the root of the groups'
    summed squares (MOVER, Zou and Donner 2008), and in a group, whose estimates depend on each
    other, the sum.
    """
    everything = [each for group in groups for each in group]
    if len(everything) == 1:
        return everything[0]
    below = sqrt(sum(sum(each.value - each.low for each in group) ** 2 for group in groups))
    above = sqrt(sum(sum(each.high - each.value for each in group) ** 2 for group in groups))
    value = sum(each.value for each in everything) / len(everything)
    return Estimate(value, value - below / len(everything), value + above / len(everything))


def estimate(scores: Mapping[str, Scores], seed: int = 0) -> dict[str, dict[str, Estimate]]:
    """Benchmark -> metric -> estimate; ``overall`` is the unweighted mean over benchmarks.

    ``overall`` has the metrics that all benchmarks have; in it, too, ``mean``, ``best`` and
    ``majority`` use each benchmark's own number of samples. Its interval is the bootstrap's if that
    of every benchmark is.
    """
    first = next(iter(scores.values()))
    shared = [
        metric
        for metric in first.metrics
        if all(metric in benchmark.metrics for benchmark in scores.values())
    ]
    estimates: dict[str, dict[str, Estimate]] = {}
    overall_M, overall_BM = np.zeros(len(shared)), np.zeros((RESAMPLES, len(shared)))
    draws: dict[str, Floats] = {}
    for name, benchmark in scores.items():
        values_M = benchmark.values_QM.mean(axis=0)
        draws[name] = bootstrap(
            benchmark.values_QM, generator(seed, name), clusters=benchmark.clusters
        )
        estimates[name] = dict(
            zip(benchmark.metrics, intervals(benchmark, draws[name]), strict=True)
        )
        overall_M += values_M[[benchmark.metrics.index(metric) for metric in shared]] / len(scores)
    for name, means_BM in (draws | _drawn_together(scores, seed)).items():
        overall_BM += means_BM[:, [scores[name].metrics.index(metric) for metric in shared]] / len(
            scores
        )
    overall = dict(zip(shared, percentiles(overall_M, overall_BM), strict=True))
    for metric in shared:
        if any(
            too_few(each.cluster_means()[:, each.metrics.index(metric)], each.least)
            for each in scores.values()
        ):
            overall[metric] = mean_of(
                [[estimates[name][metric] for name in group] for group in _dependent(scores)]
            )
    return estimates | {OVERALL: overall}


def _drawn_together(scores: Mapping[str, Scores], seed: int) -> dict[str, Floats]:
    """Bootstrap means, B x M, of the benchmarks that share clusters with others, and therefore the
    draws of them.
    """
    means: dict[str, Floats] = {}
    for group in sharing(scores):
        joint = numbered([cluster for name in group for cluster in scores[name].clusters])
        ends = np.cumsum([len(scores[name].clusters) for name in group])[:-1]
        values = [scores[name].values_QM for name in group]
        joint_means = _bootstrap(
            values, np.split(joint, ends), generator(seed, "\n".join(group)), RESAMPLES
        )
        means |= dict(zip(group, joint_means, strict=True))
    return means


def _dependent(scores: Mapping[str, Scores]) -> list[list[str]]:
    """The benchmarks in groups whose estimates depend on each other."""
    groups = sharing(scores)
    return groups + [[name] for name in scores if not any(name in group for group in groups)]


def sharing(scores: Mapping[str, Scores]) -> list[list[str]]:
    """Groups of benchmarks that are linked by common clusters; benchmarks without common clusters
    are left out.
    """
    groups: list[tuple[list[str], set[str]]] = []
    for name, benchmark in scores.items():
        linked = [group for group in groups if group[1] & set(benchmark.clusters)]
        names = [member for group in linked for member in group[0]] + [name]
        clusters = set(benchmark.clusters).union(*(group[1] for group in linked))
        groups = [group for group in groups if group not in linked] + [(names, clusters)]
    return [names for names, _ in groups if len(names) > 1]
