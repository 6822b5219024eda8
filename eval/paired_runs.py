"""Graded files side by side: the same questions in the same order, their differences, and which of them flipped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eval import graded_file
from eval.estimates import Estimate, Scores, estimate, score


@dataclass(frozen=True)
class Run:
    """A graded file: its scores by benchmark, the prompt of each question, and how it was made.

    `facts`: the content of the run file beside it, empty where there is none; `cut_off`: share of its responses.
    """

    name: str
    scores: dict[str, Scores]
    prompts: dict[tuple[str, str], str]
    facts: dict[str, Any]
    cut_off: float


def load(path: Path) -> Run:
    """Read a graded file, and OUTPUT.run.json where it lies beside it; ValueError or OSError where it is not one."""
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
    order = {name: [q for q in runs[0].scores[name].questions if q in shared[name]] for name in shared}
    return [replace(run, scores={name: _select(run.scores[name], order[name]) for name in order}) for run in runs]


def _select(scores: Scores, questions: Sequence[tuple[str, str]]) -> Scores:
    """The scores of these questions alone, in this order."""
    places = {question: place for place, question in enumerate(scores.questions)}
    rows = [places[question] for question in questions]
    clusters = tuple(scores.clusters[row] for row in rows)
    return replace(scores, questions=tuple(questions), clusters=clusters, values_QM=scores.values_QM[rows])


def differences(first: Run, other: Run) -> dict[str, dict[str, Estimate]]:
    """Benchmark -> metric -> the other's value less the first's, with its paired interval.

    ``best`` and ``majority`` only where both have as many samples; under ``overall`` the mean over benchmarks of what
    all of them have.
    """
    return estimate({name: _difference(mine, other.scores[name]) for name, mine in first.scores.items()})


def _difference(mine: Scores, theirs: Scores) -> Scores:
    """Question by question theirs less mine, of the metrics that mean the same in both."""
    unlike = () if mine.samples == theirs.samples else ("best", "majority")
    metrics = tuple(name for name in mine.metrics if name in theirs.metrics and name not in unlike)
    columns = [theirs.column(name) - mine.column(name) for name in metrics]
    return replace(mine, metrics=metrics, values_QM=np.stack(columns, axis=1))


@dataclass(frozen=True)
class Flips:
    """Places of the questions whose majority answer became right, and of those where it became wrong."""

    became_right: list[int]
    became_wrong: list[int]


def flips(first: Run, other: Run, benchmark: str) -> Flips:
    """The questions of a benchmark that flipped between two aligned runs."""
    before_Q, after_Q = (run.scores[benchmark].column("majority") > 0.5 for run in (first, other))
    return Flips(np.flatnonzero(after_Q & ~before_Q).tolist(), np.flatnonzero(before_Q & ~after_Q).tolist())
