"""What a benchmark's samples say: Mean@n, Best@n, pass@k and majority@n, each with a 95 % interval.

Every one of them is a mean over questions of a number of the question alone, so one bootstrap serves all: questions are
drawn with replacement, and the interval lies between the 2.5 and 97.5 percentiles of the means. It tells how far
another draw of questions of this kind could be off; where all questions score alike it has no width.

Array axes: Q questions, M metrics, B bootstrap draws.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
LEVEL = 0.95
CHUNK = 4_000_000  # draws times questions held in memory at a time
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
    """A benchmark's questions with their numbers; `values_QM` has a column for each of `metrics`."""

    questions: tuple[QuestionKey, ...]
    samples: int
    metrics: tuple[str, ...]
    values_QM: Floats

    def column(self, metric: str) -> Floats:
        """Each question's value of a metric."""
        return self.values_QM[:, self.metrics.index(metric)]


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The chance that k of the samples, drawn without replacement, hold a correct one (arXiv 2107.03374, eq. 1)."""
    return 1 - comb(samples - correct, k) / comb(samples, k)


def majority(votes: Iterable[tuple[str | None, bool]]) -> float:
    """The chance that the most frequent answer is right, where equally frequent ones draw lots.

    Args:
        votes: of each sample its answer, None if it gave none, and whether it is right.
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

    Metrics are ``mean``, ``best``, ``majority`` and ``pass@k`` for the powers of two up to the number of samples.

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
        raise ValueError(f"benchmark={name}: {counts[0]} to {counts[-1]} samples a question: must be as many of each")
    samples, ks = counts[0], powers_of_two(counts[0])
    values = []
    for rows in questions.values():
        correct = sum(row["correct"] for row in rows)
        votes = majority((row["vote"], row["correct"]) for row in rows)
        values.append([correct / samples, float(correct > 0), votes, *(pass_at_k(samples, correct, k) for k in ks)])
    metrics = ("mean", "best", "majority", *(f"pass@{k}" for k in ks))
    return Scores(tuple(questions), samples, metrics, np.array(values))


def bootstrap(values_QM: Floats, rng: np.random.Generator, resamples: int = RESAMPLES) -> Floats:
    """Means over questions drawn with replacement, B x M; the columns share their draws."""
    questions = len(values_QM)
    chunk = max(1, CHUNK // questions)
    means = []
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        drawn_BQ = rng.multinomial(questions, np.full(questions, 1 / questions), size=size)
        means.append(drawn_BQ @ values_QM / questions)
    return np.concatenate(means)


def generator(seed: int, name: str) -> np.random.Generator:
    """The random numbers of a benchmark: the same whatever other benchmarks there are."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def intervals(values_M: Floats, means_BM: Floats) -> list[Estimate]:
    """Each metric's value with the percentiles of its bootstrap means."""
    tail = 100 * (1 - LEVEL) / 2
    low_M, high_M = np.percentile(means_BM, [tail, 100 - tail], axis=0)
    return [Estimate(float(v), float(low), float(high)) for v, low, high in zip(values_M, low_M, high_M, strict=True)]


def estimate(scores: Mapping[str, Scores], seed: int = 0) -> dict[str, dict[str, Estimate]]:
    """Benchmark -> metric -> estimate; under ``overall`` the mean over benchmarks, each weighing the same.

    ``overall`` has the metrics that all benchmarks have. ``mean``, ``best`` and ``majority`` are of each benchmark's
    own number of samples, there too.
    """
    shared = [
        name for name in next(iter(scores.values())).metrics if all(name in own.metrics for own in scores.values())
    ]
    estimates: dict[str, dict[str, Estimate]] = {}
    overall_M, overall_BM = np.zeros(len(shared)), np.zeros((RESAMPLES, len(shared)))
    for name, own in scores.items():
        values_M, means_BM = own.values_QM.mean(axis=0), bootstrap(own.values_QM, generator(seed, name))
        estimates[name] = dict(zip(own.metrics, intervals(values_M, means_BM), strict=True))
        columns = [own.metrics.index(metric) for metric in shared]
        overall_M += values_M[columns] / len(scores)
        overall_BM += means_BM[:, columns] / len(scores)
    return estimates | {OVERALL: dict(zip(shared, intervals(overall_M, overall_BM), strict=True))}
