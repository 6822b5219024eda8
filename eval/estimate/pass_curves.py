"""pass@k for every k up to n, with bands from the bootstrap of eval/estimate/estimates.py, one draw
for all k.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypedDict

import numpy as np

from exgrpo_eval.estimate.estimates import Scores, bootstrap, generator, intervals, pass_at_k

MOST_POINTS = 64


class Curve(TypedDict):
    """Values of k, pass@k at each, and the ends of its 95 % interval."""

    k: list[int]
    value: list[float]
    low: list[float]
    high: list[float]


def ks(samples: Iterable[int]) -> list[int]:
    """The k of all curves of a report: 1 to n if n is at most 64, else a geometric series of 64
    values and each n.
    """
    numbers = set(samples)
    largest = max(numbers)
    if largest <= MOST_POINTS:
        return list(range(1, largest + 1))
    return sorted({*np.geomspace(1, largest, MOST_POINTS).round().astype(int).tolist(), *numbers})


def curves(scores: Mapping[str, Scores], seed: int = 0) -> dict[str, Curve]:
    """Benchmark -> its curve, for benchmarks with two or more samples per question."""
    repeated = {name: benchmark for name, benchmark in scores.items() if benchmark.samples > 1}
    all_ks = ks(benchmark.samples for benchmark in repeated.values()) if repeated else []
    return {
        name: _curve(name, benchmark, [k for k in all_ks if k <= benchmark.samples], seed)
        for name, benchmark in repeated.items()
    }


def _curve(name: str, scores: Scores, own_ks: list[int], seed: int) -> Curve:
    by_count = np.array(
        [
            [pass_at_k(scores.samples, correct, k) for k in own_ks]
            for correct in range(scores.samples + 1)
        ]
    )
    values_QM = by_count[scores.correct()]
    means_BM = bootstrap(values_QM, generator(seed, name), clusters=scores.clusters)
    estimates = intervals(
        replace(scores, metrics=tuple(f"pass@{k}" for k in own_ks), values_QM=values_QM), means_BM
    )
    return Curve(
        k=own_ks,
        value=[estimate.value for estimate in estimates],
        low=[estimate.low for estimate in estimates],
        high=[estimate.high for estimate in estimates],
    )
