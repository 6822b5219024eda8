"""Graded files for comparison: aligned to the same questions, with paired differences and flipped questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eval.estimate import graded_file
from eval.estimate.estimates import Estimate, Scores, estimate, score


@dataclass(frozen=True)
class Run:
    """A graded file: its scores by benchmark, the prompt of each question, and how it was made.

    `facts`: the content of the run file beside it, empty if there is none. `cut_off`: the share of truncated responses.
    """

    name: str
    scores: dict[str, Scores]
    prompts: dict[tuple[str, str], str]
    facts: dict[str, Any]
    cut_off: float


def load(path: Path) -> Run:
    """Read a graded file and, if there is one, OUTPUT.run.json beside it; ValueError or OSError if that fails."""
    rows = graded_file.read(path)
    facts = path.with_suffix(".run.json")
    return Run(
        name=path.stem,
        scores=score(rows),
        prompts={(row["question_id"], row["answer"]): row.get("prompt", "") for row in rows},
        facts=json.loads(facts.read_text(encoding="utf-8")) if facts.is_file() else {},
        cut_off=sum(row["finish_reason"] == "length" for row in rows) / len(rows),
    )


def align(runs: Sequence[Run], *, shared_only: bool) -> list[Run]:
    """The runs with the same benchmarks and questions in the same order.

    Raises:
        ValueError: their questions differ and `shared_only` is not set, or they share none.
    """
    shared: dict[str, set[tuple[str, str]]] = {}
    for benchmark in dict.fromkeys(name for run in runs for name in run.scores):
        sets = [set(run.scores[benchmark].questions) if benchmark in run.scores else set() for run in runs]
        if not shared_only and any(questions != sets[0] for questions in sets):
            counts = ", ".join(f"{run.name} {len(questions)}" for run, questions in zip(runs, sets, strict=True))
            common = len(set.intersection(*sets))
            raise ValueError(
                f"benchmark={benchmark}: must have the same questions in all files ({counts}; in common {common}); "
                "--shared_only compares those"
            )
        common_questions = set.intersection(*sets)
        if common_questions:
            shared[benchmark] = common_questions
    if not shared:
        raise ValueError("the files have no question in common")
    order = {}
    for name, questions in shared.items():
        order[name] = [question for question in runs[0].scores[name].questions if question in questions]
    aligned = []
    for run in runs:
        scores = {name: _select(run.scores[name], questions) for name, questions in order.items()}
        aligned.append(replace(run, scores=scores))
    return aligned


def _select(scores: Scores, questions: Sequence[tuple[str, str]]) -> Scores:
    """The scores of only these questions, in this order."""
    places = {question: place for place, question in enumerate(scores.questions)}
    rows = [places[question] for question in questions]
    clusters = tuple(scores.clusters[row] for row in rows)
    return replace(scores, questions=tuple(questions), clusters=clusters, values_QM=scores.values_QM[rows])


def differences(first: Run, other: Run) -> dict[str, dict[str, Estimate]]:
    """Benchmark -> metric -> the other's value minus the first's, with its paired interval.

    ``best`` and ``majority`` are included only if both runs have equally many samples; ``overall`` is the mean over
    benchmarks of the metrics that all of them have.
    """
    return estimate({name: _difference(scores, other.scores[name]) for name, scores in first.scores.items()})


def _difference(first: Scores, other: Scores) -> Scores:
    """Other minus first for each question, for the metrics that are comparable."""
    incomparable = () if first.samples == other.samples else ("best", "majority")
    metrics = tuple(name for name in first.metrics if name in other.metrics and name not in incomparable)
    columns = [other.column(name) - first.column(name) for name in metrics]
    return replace(first, metrics=metrics, values_QM=np.stack(columns, axis=1))


@dataclass(frozen=True)
class Flips:
    """Positions of the questions whose majority answer became correct, and of those where it became wrong."""

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
