"""The ways to draw from a buffer: which questions, by the pool's sampler, and which trajectory, by its selector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from exgrpo.experience.config import BucketMethod
from exgrpo.experience.trajectory_selector import TrajectorySelector
from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler

Range = tuple[float, float]
AsNamed = Literal["as named"]  # the strategy's own bound

_QUESTIONS: dict[str, tuple[BucketMethod, Range | None]] = {
    "medium_difficulty": ("normal", (0.3, 0.7)),
    "uniform": (False, None),
}
_TRAJECTORIES = {
    "low_entropy": TrajectorySelector("ent", "argmin"),
    "high_entropy": TrajectorySelector("ent", "argmax"),
    "random": TrajectorySelector("random", "argmin"),
}
STRATEGIES = [f"{questions}_{trajectories}" for questions in _QUESTIONS for trajectories in _TRAJECTORIES]


class Strategy(NamedTuple):
    """A strategy with its bounds; None stands for no bound."""

    method: BucketMethod
    selector: TrajectorySelector
    difficulty_range: Range | None
    entropy_percentile: float | None

    def sampler(self, tiers: int) -> WeightedBucketSampler:
        """Of questions in buckets 1..tiers; `normal` is centred on the middle one."""
        return WeightedBucketSampler(self.method, tiers + 1)


def resolve(
    name: str,
    difficulty_range: Sequence[float] | AsNamed | None,
    entropy_percentile: float | AsNamed | None,
    percentiles: Sequence[float],
) -> Strategy:
    """The strategy of that name, with the given bounds in the place of its own.

    Raises:
        ValueError: an unknown name, a range that is none, a percentile that is not among `percentiles`.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy={name!r}: must be one of {', '.join(STRATEGIES)}")
    questions = next(prefix for prefix in _QUESTIONS if name.startswith(f"{prefix}_"))
    (method, bounds), trajectories = _QUESTIONS[questions], name.removeprefix(f"{questions}_")
    if difficulty_range != "as named":
        bounds = None if difficulty_range is None else checked_range("difficulty_range", difficulty_range)
    if entropy_percentile == "as named":
        percentile = min(percentiles, default=None) if trajectories == "low_entropy" else None
    elif entropy_percentile is None or entropy_percentile in percentiles:
        percentile = entropy_percentile
    else:
        allowed = ", ".join(f"{known:g}" for known in percentiles)
        raise ValueError(f"entropy_percentile={entropy_percentile}: must be None or one of {allowed}")
    return Strategy(method, _TRAJECTORIES[trajectories], bounds, percentile)


def checked_range(name: str, bounds: Sequence[float]) -> Range:
    """(low, high) of levels of difficulty, both included. ValueError if it is none."""
    array = np.asarray(bounds)
    if array.shape != (2,) or array.dtype.kind not in "iuf":
        raise ValueError(f"{name}={bounds!r}: must be two numbers, (low, high)")
    low, high = array.tolist()
    if not 0 <= low <= high <= 1:
        raise ValueError(f"{name}=({low}, {high}): must be (low, high) with 0 <= low <= high <= 1")
    return low, high
