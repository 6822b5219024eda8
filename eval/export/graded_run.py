"""A graded run in the form that the exports need: by benchmark and question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from exgrpo_eval.reports.report_text import model_name


@dataclass(frozen=True)
class Run:
    """The rows of an output file, and the record of how they were made."""

    rows: Sequence[Mapping[str, Any]]
    record: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The model's name."""
        return model_name(self.record)

    @property
    def of_another_harness(self) -> bool:
        """Whether its sampling is not known: it was graded, not generated."""
        return "grade_only" in self.record.get("identity", {})

    @property
    def started(self) -> str:
        """When generation began (ISO 8601, UTC); now, if the run file does not say."""
        return str(self.record.get("started") or datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def finished(self) -> str:
        """When generation ended, without the pauses between sessions (ISO 8601)."""
        started = datetime.fromisoformat(self.started)
        return (started + timedelta(seconds=self.record.get("seconds") or 0)).isoformat()

    def benchmarks(self) -> dict[str, list[list[Mapping[str, Any]]]]:
        """Benchmark -> the samples of each question, both sorted by number."""
        by_question: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
        for row in sorted(self.rows, key=lambda row: (row["question"], row["sample"])):
            by_question.setdefault(row["benchmark"], {}).setdefault(row["question"], []).append(row)
        return {name: list(questions.values()) for name, questions in by_question.items()}


def accuracy(questions: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[float, float]:
    """Mean@n and its standard error over questions, which is 0 for a single question."""
    means = np.array([np.mean([row["correct"] for row in samples]) for samples in questions])
    error = means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else 0.0
    return float(means.mean()), float(error)
