"""The ways to draw from a buffer: settings of experience replay, with bounds on difficulty and recorded entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.trajectory_selector import RANDOM

Range = tuple[float, float]
AsNamed = Literal["as named"]  # the strategy's own bound

_QUESTIONS: dict[str, tuple[str | Literal[False], Range | None]] = {
    "medium_difficulty": ("normal", (0.3, 0.7)),
    "uniform": (False, None),
}
_TRAJECTORIES = {"low_entropy": ("ent", "argmin"), "high_entropy": ("ent", "argmax"), "random": (RANDOM, "argmin")}
STRATEGIES = [f"{questions}_{trajectories}" for questions in _QUESTIONS for trajectories in _TRAJECTORIES]


class Strategy(NamedTuple):
    """A strategy with its bounds.

    Attributes:
        settings: keys of ExperienceConfig.
        difficulty_range, entropy_percentile: None stands for no bound.
    """

    settings: dict[str, Any]
    difficulty_range: Range | None
    entropy_percentile: float | None

    def config(self, buffers: ExperienceConfig) -> ExperienceConfig:
        """The buffer's own settings, with those of the strategy."""
        return replace(buffers, **self.settings)

    @property
    def needs_scores(self) -> bool:
        """Whether entropies choose among a question's trajectories."""
        return self.settings["exp_metric"] != RANDOM


def resolve(
    name: str,
    difficulty_range: Sequence[float] | AsNamed | None,
    entropy_percentile: float | AsNamed | None,
    percentiles: Sequence[float],
) -> Strategy:
    """The strategy of that name, with the given bounds instead of its own.

    Raises:
        ValueError: an unknown name, a range that is none, a percentile that is not among `percentiles`.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy={name!r}: must be one of {', '.join(STRATEGIES)}")
    questions = next(prefix for prefix in _QUESTIONS if name.startswith(f"{prefix}_"))
    trajectories = name.removeprefix(f"{questions}_")
    bucket_manager, bounds = _QUESTIONS[questions]
    metric, mode = _TRAJECTORIES[trajectories]
    if difficulty_range != "as named":
        bounds = None if difficulty_range is None else checked_range("difficulty_range", difficulty_range)
    if entropy_percentile == "as named":
        percentile = min(percentiles, default=None) if trajectories == "low_entropy" else None
    elif entropy_percentile is None or entropy_percentile in percentiles:
        percentile = entropy_percentile
    else:
        allowed = ", ".join(f"{known:g}" for known in percentiles)
        raise ValueError(f"entropy_percentile={entropy_percentile}: must be None or one of {allowed}")
    settings = {"exp_bucket_manager": bucket_manager, "exp_metric": metric, "exp_select_mode": mode}
    return Strategy(settings, bounds, percentile)


def checked_range(name: str, bounds: Sequence[float]) -> Range:
    """(low, high) of levels of difficulty, both included. ValueError if it is none."""
    array = np.asarray(bounds)
    if array.shape != (2,) or array.dtype.kind not in "iuf":
        raise ValueError(f"{name}={bounds!r}: must be two numbers, (low, high)")
    low, high = array.tolist()
    if not 0 <= low <= high <= 1:
        raise ValueError(f"{name}=({low}, {high}): must be (low, high) with 0 <= low <= high <= 1")
    return low, high
