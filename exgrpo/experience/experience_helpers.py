"""What replay computes with: fresh questions, rows of prompts for the collate function, metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience import checked

if TYPE_CHECKING:
    from exgrpo.experience.experience_pool import ExperiencePool

logger = logging.getLogger(__name__)
Row = Mapping[str, Any]

# -- sampling of fresh questions -------------------------------------------------------------------

# next question of the data set, and whether it begins a new epoch
NextQuestion = Callable[[], tuple[str, bool]]


class FreshQuestions:
    """Deals out questions: none twice in a step, none retired when its epoch began (as released).

    If a new epoch would be too small for the step, it skips what the last one did, or nothing.

    Args:
        pool: its retired questions are left out; never changed here.
        questions: ids of the data set's questions.
        skip_retired: False: retired questions are dealt out like any other.

    Attributes:
        deferred: questions fetched while already in the step; the first of the next step.
        skipped: number of retired questions left out of this epoch.
    """

    def __init__(
        self, pool: ExperiencePool, questions: Collection[str], skip_retired: bool
    ) -> None:
        self._pool, self._questions, self._skip_retired = pool, frozenset(questions), skip_retired
        self.deferred: list[str] = []
        self.skip(0)

    def skip(self, number: int) -> None:
        """Skip the first `number` retired questions, in order of retirement, in this epoch."""
        self.skipped = number
        self._skipped = frozenset(self._pool.retired[:number] if self._skip_retired else ())

    def take(self, count: int, drawn: Collection[str], next_question: NextQuestion) -> list[str]:
        """The next ``count`` questions; one that is in the step already waits for the next step.

        Args:
            drawn: questions already in the step; with ``count`` no more than the data set has.
        """
        taken: list[str] = []
        needed = len(drawn) + count
        waiting, self.deferred = self.deferred, []
        while len(taken) < count:
            question = waiting.pop(0) if waiting else self._next(next_question, needed)
            if question in drawn or question in taken:
                # of a prompt that is stuck in flight each epoch fetches another copy
                if question not in self.deferred:
                    self.deferred.append(question)
            else:
                taken.append(question)
        self.deferred += [question for question in waiting if question not in self.deferred]
        return taken

    def _next(self, next_question: NextQuestion, needed: int) -> str:
        while True:
            question, begins_epoch = next_question()
            if begins_epoch and self._skip_retired:
                self._begin_epoch(needed)
            if question not in self._skipped:
                return question

    def _begin_epoch(self, needed: int) -> None:
        retired = self._pool.retired
        for number in (len(retired), self.skipped, 0):
            self.skip(number)
            if sum(question not in self._skipped for question in self._questions) >= needed:
                break
        text = "a new epoch of the data: %d of %d questions are retired, %d of them are skipped"
        logger.warning(text, len(retired), len(self._questions), number)

    @property
    def exhausted(self) -> bool:
        """Whether all questions of the data set are retired: nothing is left to learn from."""
        retired = self._pool.retired
        return (
            self._skip_retired
            and len(retired) >= len(self._questions)  # cheap, and false in almost every step
            and self._questions <= set(retired)
        )


# -- sample builders of the collate function -------------------------------------------------------


def prompt_rows(
    fresh: Sequence[Row],
    replayed: Sequence[Row],
    rollout_n: int,
    step: int,
    rng: np.random.Generator,
    first: int = 0,
) -> list[dict[str, Any]]:
    """The rows of a batch in random order, with ``is_replayed``, ``uid`` and ``__rollout_n__``.

    ``uid`` is ``{step}q{position}``: reproducible, unlike a random id, and without the underscore
    that separates the parts of a rollout's key. The rows are copied; the arguments are those of
    `ExperienceMixCollateFn`.
    """
    rows = [dict(row, is_replayed=False) for row in fresh]
    rows += [dict(row, is_replayed=True) for row in replayed]
    rows = [rows[i] for i in rng.permutation(len(rows))]
    for position, row in enumerate(rows, start=first):
        row["uid"] = f"{step:07d}q{position:05d}"
        row["__rollout_n__"] = rollout_n - row["is_replayed"]
    return rows


def columns_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Column name -> object array [B]: the default collation, for use without a framework's own."""
    columns: dict[str, Any] = {}
    for name in rows[0]:
        columns[name] = np.empty(len(rows), dtype=object)
        columns[name][:] = [row[name] for row in rows]
    return columns


# -- metrics ---------------------------------------------------------------------------------------


def effective_sample_size(log_ratios: npt.ArrayLike) -> float:
    """(sum w)^2 / (n sum w^2) of ratios w: 1 if all are equal, 1/n if one dominates.

    Args:
        log_ratios: [n], natural log; the largest may be any number.

    Raises:
        ValueError: not 1-D or empty.
    """
    values = vector_of("log_ratios", log_ratios)
    weights = np.exp(values - values.max())
    return float(weights.sum() ** 2 / (values.size * np.square(weights).sum()))


def mean_square(log_ratios: npt.NDArray[Any]) -> float:
    """The drift of a response or group: the mean of (log w)^2 over its tokens."""
    return float(np.square(np.asarray(log_ratios, dtype=np.float64)).mean())


def ratio_metrics(log_ratios: npt.NDArray[np.float32]) -> dict[str, float]:
    """Importance ratios w = pi_current / pi_past of a step's replayed tokens, before its update.

    Args:
        log_ratios: [tokens], natural log; empty if nothing was replayed.
    """
    logs = np.asarray(log_ratios if len(log_ratios) else [0.0], dtype=np.float64)
    low, median, high = np.exp(np.quantile(logs, [0.05, 0.5, 0.95]))
    return {
        "ratio_mean": float(np.exp(logs).mean()),
        "ratio_p05": float(low),
        "ratio_median": float(median),
        "ratio_p95": float(high),
        "ratio_ess": effective_sample_size(logs),
        "ratio_beyond_2": float((np.abs(logs) > np.log(2)).mean()),
    }


def vector_of(name: str, values: Any) -> npt.NDArray[np.float64]:
    """The values as float64 [n]; ValueError, with `name`, if they are not 1-D or empty."""
    return checked.vector(name, np.asarray(values, dtype=np.float64), may_be_empty=False)
