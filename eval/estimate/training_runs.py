"""The difference of two methods that were trained several times, including the variance between
training runs.

Questions and runs are both drawn with replacement: questions once for all runs, whose scores on
them are correlated, and the runs of each method separately, once for all benchmarks. The variance
of few runs drawn with replacement is too small by the factor (runs - 1)/runs; the draws are spread
to correct this. Noise that belongs to one run on one question, such as that of its samples, counts
up to three times in such draws (Owen 2007, arXiv 0712.1111): the interval is wide if runs hardly
differ, and too narrow if two or three runs differ much. Therefore Student's interval from the
variance components, with Satterthwaite's degrees of freedom, is computed too; it decides the
verdict.

Array axes: R runs, C clusters of questions, B bootstrap draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from exgrpo_eval.estimate.estimates import (
    CHUNK,
    LEVEL,
    OVERALL,
    RESAMPLES,
    ROUNDING,
    Estimate,
    Floats,
    Scores,
    alike,
    cluster_sums,
    generator,
    mean_of,
    numbered,
    percentiles,
)
from exgrpo_eval.estimate.paired_tests import POWER

# .975 quantiles of Student's t for 1 to 10 degrees of freedom; beyond, the expansion is right to
# three digits
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
LEAST = (0.0, 0.0, -1.0)  # of the first method, the second, and their difference
Method = Sequence[Mapping[str, Scores]]  # the scores of its runs


@dataclass(frozen=True)
class Comparison:
    """Mean@n of two methods; `deviations` are the standard deviations of their runs' means.

    `difference` is the second's minus the first's with its bootstrap interval, `student` the same
    with Student's; where nothing varies, both have the interval of clusters that are alike
    (estimates.alike).
    `resolvable`: the smallest true difference that so many runs and questions find with 80 % power,
    with the variances
    estimated here; None if nothing varies.
    """

    first: Estimate
    second: Estimate
    difference: Estimate
    student: Estimate
    deviations: tuple[float, float]
    resolvable: float | None


@dataclass(frozen=True)
class _Parts:
    """Variance components of a difference: of the questions, of each method's runs, and what both
    of them include.

    `freedom`: the degrees of freedom of the questions' component.
    """

    questions: float
    runs: tuple[float, float]
    both: float
    freedom: float


def compare(first: Method, second: Method, seed: int = 0) -> dict[str, Comparison]:
    """Benchmark -> comparison; ``overall`` is that of the unweighted mean over benchmarks.

    A question that several benchmarks have is drawn separately for each of them.

    Args:
        first, second: two or more runs each, all with the same benchmarks and questions in the same
            order.
    """
    run_weights = [
        _run_weights(len(first), generator(seed, "runs of a")),
        _run_weights(len(second), generator(seed, "runs of b")),
    ]
    comparisons, all_draws, all_parts, all_means = {}, [], [], []
    all_estimates, points = [], set[int]()
    for name in first[0]:
        values = [_by_cluster([run[name] for run in runs]) for runs in (first, second)]
        means = [
            np.array([run[name].column("mean").mean() for run in runs]) for runs in (first, second)
        ]
        draws = _draws(values, run_weights, generator(seed, name))
        parts = _parts(values)
        drawn = _estimates(means, draws)
        points |= {place for place, each in enumerate(drawn) if _is_point(each)}
        estimates = [
            _with_width(each, values[0].shape[1], least)
            for each, least in zip(drawn, LEAST, strict=True)
        ]
        comparisons[name] = _comparison(means, estimates, parts)
        all_estimates.append(estimates)
        all_draws.append(draws)
        all_parts.append(parts)
        all_means.append(means)
    means = [np.mean([by_method[method] for by_method in all_means], axis=0) for method in (0, 1)]
    draws = [np.mean([by_method[method] for by_method in all_draws], axis=0) for method in (0, 1)]
    overall = _estimates(means, draws)
    for place in points:  # in one group, since the benchmarks share the runs
        overall[place] = mean_of([[estimates[place] for estimates in all_estimates]])
    return comparisons | {OVERALL: _comparison(means, overall, _mean_parts(means, all_parts))}


def _by_cluster(runs: Sequence[Scores]) -> Floats:
    """Each cluster's contribution to each run's mean, R x C; their mean is the run's mean minus the
    method's mean.
    """
    values_RQ = np.stack([run.column("mean") for run in runs])
    numbers_Q = numbered(runs[0].clusters)
    clusters = int(numbers_Q.max()) + 1
    sums_CR, _ = cluster_sums((values_RQ - values_RQ.mean()).T, numbers_Q, clusters)
    return sums_CR.T * clusters / values_RQ.shape[1]


def _run_weights(runs: int, rng: np.random.Generator) -> Floats:
    """Weights of the runs in each draw, B x R, which sum to 1; some are negative, since they are
    spread.
    """
    shares_BR = rng.multinomial(runs, np.full(runs, 1 / runs), size=RESAMPLES) / runs
    return 1 / runs + (shares_BR - 1 / runs) * math.sqrt(runs / (runs - 1))


def _draws(
    values: Sequence[Floats], run_weights: Sequence[Floats], rng: np.random.Generator
) -> list[Floats]:
    """For each method B bootstrap means minus its own mean; the methods share the draws of
    questions.
    """
    clusters = values[0].shape[1]
    chunk = max(1, CHUNK // clusters)
    means: list[list[Floats]] = [[], []]
    for start in range(0, RESAMPLES, chunk):
        part = slice(start, min(start + chunk, RESAMPLES))
        shares_BC = (
            rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=part.stop - start)
            / clusters
        )
        for method_means, values_RC, weights_BR in zip(means, values, run_weights, strict=True):
            method_means.append(((weights_BR[part] @ values_RC) * shares_BC).sum(axis=1))
    return [np.concatenate(method_means) for method_means in means]


def _parts(values: Sequence[Floats]) -> _Parts:
    clusters = values[0].shape[1]
    difference_C = values[1].mean(axis=0) - values[0].mean(axis=0)
    both = 0.0
    for values_RC in values:
        rest_RC = (
            values_RC
            - values_RC.mean(axis=1, keepdims=True)
            - values_RC.mean(axis=0)
            + values_RC.mean()
        )
        runs = len(values_RC)
        both += float((rest_RC**2).sum()) / ((runs - 1) * max(1, clusters - 1)) / (runs * clusters)
    questions = float(difference_C.var(ddof=1)) / clusters if clusters > 1 else 0.0
    first, second = (
        float(values_RC.mean(axis=1).var(ddof=1)) / len(values_RC) for values_RC in values
    )
    return _Parts(questions, (first, second), both, max(1, clusters - 1))


def _mean_parts(means: Sequence[Floats], parts: Sequence[_Parts]) -> _Parts:
    """The components of the mean over benchmarks: their questions vary independently, their runs
    are the same.
    """
    scale = len(parts) ** 2
    questions = sum(part.questions for part in parts) / scale
    squares = sum((part.questions / scale) ** 2 / part.freedom for part in parts)
    first, second = (float(run_means.var(ddof=1)) / len(run_means) for run_means in means)
    both = sum(part.both for part in parts) / scale
    return _Parts(questions, (first, second), both, questions**2 / squares if squares else 1)


def _estimates(means: Sequence[Floats], draws: Sequence[Floats]) -> list[Estimate]:
    """Of the first method, of the second, and of their difference, with the percentiles of the
    draws.
    """
    first, second = (float(run_means.mean()) for run_means in means)
    centres = np.array([first, second, second - first])
    draws_BM = np.stack([draws[0], draws[1], draws[1] - draws[0]], axis=1) + centres
    return percentiles(centres, draws_BM)


def _is_point(drawn: Estimate) -> bool:
    return drawn.high - drawn.low < ROUNDING


def _with_width(drawn: Estimate, clusters: int, least: float) -> Estimate:
    """The estimate, or where neither runs nor questions vary the interval of clusters that are
    alike.
    """
    return alike(drawn.value, clusters, least) if _is_point(drawn) else drawn


def _comparison(
    means: Sequence[Floats], estimates: Sequence[Estimate], parts: _Parts
) -> Comparison:
    of_first, of_second, difference = estimates
    deviations = (float(means[0].std(ddof=1)), float(means[1].std(ddof=1)))
    error, quantile = _error(parts, [len(run_means) for run_means in means])
    if error < ROUNDING:
        return Comparison(of_first, of_second, difference, difference, deviations, None)
    student = Estimate(
        difference.value, difference.value - quantile * error, difference.value + quantile * error
    )
    resolvable = (quantile + NormalDist().inv_cdf(POWER)) * error
    return Comparison(of_first, of_second, difference, student, deviations, resolvable)


def _error(parts: _Parts, runs: Sequence[int]) -> tuple[float, float]:
    """Standard error of the difference, and the quantile of Student's t for its degrees of
    freedom.
    """
    of_runs = sum(parts.runs)
    variance = max(parts.questions + of_runs - parts.both, parts.questions, of_runs)
    squares = sum(
        variance_of_runs**2 / (count - 1)
        for variance_of_runs, count in zip(parts.runs, runs, strict=True)
    )
    squares += parts.questions**2 / parts.freedom
    return math.sqrt(variance), student_quantile(variance**2 / squares if squares else 1)


def student_quantile(freedom: float) -> float:
    """The .975 quantile of Student's t; degrees of freedom are rounded down."""
    whole = max(1, math.floor(freedom))
    if whole <= len(_STUDENT):
        return _STUDENT[whole - 1]
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    return z + (z**3 + z) / (4 * whole) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * whole**2)
