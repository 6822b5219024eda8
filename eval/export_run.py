"""A graded run, benchmark by benchmark, as the exports need it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Run:
    """The rows of an output file, and the record of how they were made."""

    rows: Sequence[Mapping[str, Any]]
    record: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.record.get("model_path") or "a model")

    @property
    def started(self) -> str:
        """When generation began (ISO 8601, UTC); of a run that does not say it, now."""
        return str(self.record.get("started") or datetime.now(UTC).isoformat(timespec="seconds"))

    def benchmarks(self) -> dict[str, list[list[Mapping[str, Any]]]]:
        """Benchmark -> the samples of each of its questions, both in their order."""
        found: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
        for row in sorted(self.rows, key=lambda row: (row["question"], row["sample"])):
            found.setdefault(row["benchmark"], {}).setdefault(row["question"], []).append(row)
        return {name: list(questions.values()) for name, questions in found.items()}


def accuracy(questions: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[float, float]:
    """Mean@n and its standard error over questions, 0 of a single one."""
    means = np.array([np.mean([row["correct"] for row in samples]) for samples in questions])
    error = means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else 0.0
    return float(means.mean()), float(error)


def file_part(name: str) -> str:
    """A benchmark's name as a part of a file's name."""
    return re.sub(r"[^\w.-]", "_", name)
