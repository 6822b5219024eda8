"""Graded files for comparison: aligned to the same questions, with paired differences and flipped
questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo_eval.estimate import graded_file
from exgrpo_eval.estimate.estimates import Estimate, QuestionKey, Scores, estimate, score

Place = tuple[str, QuestionKey]  # benchmark, question


@dataclass(frozen=True)
class Run:
    """A graded file: its scores by benchmark, the prompt of each question, and how it was made.

    `facts`: the content of the run file beside it, empty if there is none. `cut_off`: the share of
    truncated responses, see graded_file.cut_off. `paired`: of an aligned run, the benchmarks of its
    own file in which the questions of each benchmark are; `other_gold`: how many of them have
    another gold answer than in the first run.
    """

    name: str
    scores: dict[str, Scores]
    prompts: dict[tuple[str, str], str]
    facts: dict[str, Any]
    cut_off: float | None
    paired: dict[str, tuple[str, ...]] = field(default_factory=dict)
    other_gold: int = 0


def load(path: Path) -> Run:
    """Read a graded file and, if there is one, OUTPUT.run.json beside it; ValueError or OSError if
    that fails.
    """
    rows = graded_file.read(path)
    facts = path.with_suffix(".run.json")
    return Run(
        name=path.stem,
        scores=score(rows),
        prompts={(row["question_id"], row["answer"]): row["prompt"] or "" for row in rows},
        facts=graded_file.record(facts) if facts.is_file() else {},
        cut_off=graded_file.cut_off(rows),
    )


def align(runs: Sequence[Run], *, shared_only: bool) -> list[Run]:
    """The runs with the same benchmarks and questions in the same order, by the names of the first
    run.

    Questions are paired by their ids, whatever their benchmarks and files are called.

    Raises:
        ValueError: their questions differ and `shared_only` is not set, or they share none.
    """
    first, *others = runs
    fits = [_Fit(first, {}), *(_fit(first, other) for other in others)]
    if not any(_common(fits, name) for name in first.scores):
        raise ValueError(f"the files have no question in common: {'; '.join(map(_contents, runs))}")
    if not shared_only:
        _refuse_unlike(fits)
    order = {}
    for name, scores in first.scores.items():
        if common := _common(fits, name):
            order[name] = [question for question in scores.questions if question in common]
    aligned = []
    for fit in fits:
        selected = {
            name: _select(fit.run.scores[name], questions) for name, questions in order.items()
        }
        aligned.append(replace(fit.run, scores=selected))
    return aligned


@dataclass(frozen=True)
class _Fit:
    """A run whose questions have the benchmarks and keys of the first run; `left` counts those that
    the first does not have, by their own benchmark.
    """

    run: Run
    left: dict[str, int]

    def count(self, benchmark: str) -> int:
        """The questions of a benchmark, left ones included."""
        scores = self.run.scores.get(benchmark)
        return self.left.get(benchmark, 0) + (len(scores.questions) if scores else 0)


def _common(fits: Sequence[_Fit], benchmark: str) -> set[QuestionKey]:
    """The questions of a benchmark that all runs have."""
    if not all(benchmark in fit.run.scores for fit in fits):
        return set()
    return set.intersection(*(set(fit.run.scores[benchmark].questions) for fit in fits))


def _refuse_unlike(fits: Sequence[_Fit]) -> None:
    names = [*fits[0].run.scores, *(name for fit in fits for name in fit.left)]
    for benchmark in dict.fromkeys(names):
        common = len(_common(fits, benchmark))
        if any(fit.count(benchmark) != common for fit in fits):
            counts = ", ".join(f"{fit.run.name} {fit.count(benchmark)}" for fit in fits)
            raise ValueError(
                f"benchmark={benchmark}: must have the same questions in all files "
                f"({counts}; in common {common}); "
                "--shared_only compares those"
            )


def _contents(run: Run) -> str:
    return (
        f"{run.name} has "
        f"{', '.join(f'{len(scores.questions)} of {name}' for name, scores in run.scores.items())}"
    )


def _fit(first: Run, other: Run) -> _Fit:
    """The other run by the names of the first."""
    places = _places(first, other)
    left: Counter[str] = Counter()
    taken: dict[str, list[tuple[QuestionKey, Scores, int]]] = {}  # by the first's benchmark
    sources: dict[str, dict[str, None]] = {}
    for own, scores in other.scores.items():
        for row, question in enumerate(scores.questions):
            if (place := places.get((own, question))) is None:
                left[own] += 1
                continue
            benchmark, key = place
            taken.setdefault(benchmark, []).append((key, scores, row))
            sources.setdefault(benchmark, {})[own] = None
    joined = {
        name: _joined(f"{name} of {other.name}", taken[name])
        for name in first.scores
        if name in taken
    }
    paired = {name: tuple(own) for name, own in sources.items()}
    other_gold = sum(question != key for (_, question), (_, key) in places.items())
    return _Fit(replace(other, scores=joined, paired=paired, other_gold=other_gold), dict(left))


def _places(first: Run, other: Run) -> dict[Place, Place]:
    """Where the other run's questions are in the first: (benchmark, question) -> the same of the
    first.

    Of several places with a question's id, one with its gold answer goes before one without, then
    one in a benchmark of its name before others; no place is taken twice.
    """
    by_id: dict[str, list[Place]] = {}
    for name, scores in first.scores.items():
        for question in scores.questions:
            by_id.setdefault(question[0], []).append((name, question))
    candidates = [
        (question != key, own != name, (own, question), (name, key))
        for own, scores in other.scores.items()
        for question in scores.questions
        for name, key in by_id.get(question[0], ())
    ]
    found: dict[Place, Place] = {}
    taken = set()
    for _, _, own_place, place in sorted(candidates, key=lambda candidate: candidate[:2]):
        if own_place not in found and place not in taken:
            found[own_place] = place
            taken.add(place)
    return found


def _joined(title: str, rows: Sequence[tuple[QuestionKey, Scores, int]]) -> Scores:
    """The scores of questions that may be in several benchmarks; ValueError if those have unlike
    numbers of samples.
    """
    counts = sorted({scores.samples for _, scores, _ in rows})
    if len(counts) > 1:
        raise ValueError(
            f"{title}: has {counts[0]} to {counts[-1]} samples per question: must be the "
            "same number for all"
        )
    return replace(
        rows[0][1],
        questions=tuple(key for key, _, _ in rows),
        clusters=tuple(scores.clusters[row] for _, scores, row in rows),
        values_QM=np.stack([scores.values_QM[row] for _, scores, row in rows]),
    )


def _select(scores: Scores, questions: Sequence[tuple[str, str]]) -> Scores:
    """The scores of only these questions, in this order."""
    places = {question: place for place, question in enumerate(scores.questions)}
    rows = [places[question] for question in questions]
    clusters = tuple(scores.clusters[row] for row in rows)
    return replace(
        scores, questions=tuple(questions), clusters=clusters, values_QM=scores.values_QM[rows]
    )


def differences(first: Run, other: Run) -> dict[str, dict[str, Estimate]]:
    """Benchmark -> metric -> the other's value minus the first's, with its paired interval.

    ``best`` and ``majority`` are included only if both runs have equally many samples; ``overall``
    is the mean over benchmarks of the metrics that all of them have.
    """
    return estimate(
        {name: _difference(scores, other.scores[name]) for name, scores in first.scores.items()}
    )


def _difference(first: Scores, other: Scores) -> Scores:
    """Other minus first for each question, for the metrics that are comparable."""
    incomparable = () if first.samples == other.samples else ("best", "majority")
    metrics = tuple(
        name for name in first.metrics if name in other.metrics and name not in incomparable
    )
    columns = [other.column(name) - first.column(name) for name in metrics]
    return replace(first, metrics=metrics, values_QM=np.stack(columns, axis=1), least=-1.0)


@dataclass(frozen=True)
class Flips:
    """Positions of the questions whose majority answer became correct, and of those where it became
    wrong.
    """

    became_right: list[int]
    became_wrong: list[int]


def flips(first: Run, other: Run, benchmark: str) -> Flips:
    """The questions of a benchmark that flipped between two aligned runs."""
    before_Q = first.scores[benchmark].column("majority") > 0.5
    after_Q = other.scores[benchmark].column("majority") > 0.5
    return Flips(
        became_right=np.flatnonzero(after_Q & ~before_Q).tolist(),
        became_wrong=np.flatnonzero(before_Q & ~after_Q).tolist(),
    )
