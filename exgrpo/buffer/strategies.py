"""Strategies to draw from a buffer: settings of replay, bounds on difficulty and entropy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.buffer.difficulty_bucketer import DifficultyBucketer
from exgrpo.buffer.records import ReplayBatch
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.rules import RANDOM
from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import Candidate, Scorer, TokenScores

# n candidates -> their mean token entropies [n] in nats
Scores = Callable[[ReplayBatch], npt.ArrayLike]
Range = tuple[float, float]
AsNamed = Literal["as named"]  # use the strategy's own bound

_QUESTIONS: dict[str, tuple[str | Literal[False], Range | None]] = {
    "medium_difficulty": ("normal", (0.3, 0.7)),
    "uniform": (False, None),
}
_TRAJECTORIES = {
    "low_entropy": ("ent", "argmin"),
    "high_entropy": ("ent", "argmax"),
    "random": (RANDOM, "argmin"),
}
STRATEGIES = [
    f"{questions}_{trajectories}" for questions in _QUESTIONS for trajectories in _TRAJECTORIES
]


class NothingLeft(ValueError):
    """No trajectory is within the bounds of a draw."""


class Drawable(NamedTuple):
    """The questions that have a candidate.

    Attributes:
        buckets: bucket -> questions in their order of entry; no bucket is empty.
        limit: highest allowed recorded entropy of a candidate; None: any, including unknown ones.
    """

    buckets: dict[int, list[str]]
    limit: float | None

    def has(self, entropy: float) -> bool:
        """Whether a trajectory with this recorded entropy (NaN if unknown) is a candidate."""
        return self.limit is None or entropy <= self.limit


class Strategy(NamedTuple):
    """A strategy with its bounds.

    Attributes:
        settings: keys of ExperienceConfig, instead of the buffer's.
        difficulty_range, entropy_percentile: None means no bound.
    """

    settings: dict[str, Any]
    difficulty_range: Range | None
    entropy_percentile: float | None

    def drawable(
        self, pool: ExperiencePool, bucketer: DifficultyBucketer, scored: bool = False
    ) -> Drawable:
        """The questions and candidates within the bounds; takes one pass over the pool.

        Args:
            scored: whether candidates will be scored, whatever their recorded entropies.
        """
        low, high = self.difficulty_range or (0.0, 1.0)
        prompts = [prompt for prompt in pool if low <= bucketer.level(prompt) <= high]
        percentile, limit = self.entropy_percentile, None
        if percentile is not None or (self.settings["exp_metric"] != RANDOM and not scored):
            recorded = recorded_entropies(pool)
            limit = highest = math.inf if percentile is None else threshold(recorded, percentile)
            prompts = [each for each in prompts if any(nats <= highest for nats in recorded[each])]
        buckets: dict[int, list[str]] = {}
        for prompt in prompts:
            buckets.setdefault(pool.bucket(prompt), []).append(prompt)
        return Drawable(dict(sorted(buckets.items())), limit)


def resolve(
    name: str,
    difficulty_range: Sequence[float] | AsNamed | None,
    entropy_percentile: float | AsNamed | None,
    percentiles: Sequence[float],
) -> Strategy:
    """The strategy of that name, with the given bounds instead of its own.

    Raises:
        ValueError: an unknown name, an invalid range, or a percentile that is not in `percentiles`.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy={name!r}: must be one of {', '.join(STRATEGIES)}")
    questions = next(prefix for prefix in _QUESTIONS if name.startswith(f"{prefix}_"))
    trajectories = name.removeprefix(f"{questions}_")
    bucket_manager, bounds = _QUESTIONS[questions]
    metric, mode = _TRAJECTORIES[trajectories]
    if difficulty_range is None:
        bounds = None
    elif difficulty_range != "as named":
        bounds = checked_range("difficulty_range", difficulty_range)
    if entropy_percentile == "as named":
        percentile = min(percentiles, default=None) if trajectories == "low_entropy" else None
    elif entropy_percentile is None or entropy_percentile in percentiles:
        percentile = entropy_percentile
    else:
        allowed = ", ".join(f"{percentile:g}" for percentile in percentiles)
        given = f"entropy_percentile={entropy_percentile}"
        raise ValueError(f"{given}: must be None or one of {allowed}")
    settings = {"exp_bucket_manager": bucket_manager, "exp_metric": metric, "exp_select_mode": mode}
    return Strategy(settings, bounds, percentile)


def checked_range(name: str, bounds: Sequence[float]) -> Range:
    """(low, high) of levels of difficulty, both included; ValueError if it is not a valid range."""
    array = np.asarray(bounds)
    if array.shape != (2,) or array.dtype.kind not in "iuf":
        raise ValueError(f"{name}={bounds!r}: must be two numbers, (low, high)")
    low, high = array.tolist()
    if not 0 <= low <= high <= 1:
        raise ValueError(f"{name}=({low}, {high}): must be (low, high) with 0 <= low <= high <= 1")
    return low, high


def recorded_entropies(pool: ExperiencePool) -> dict[str, list[float]]:
    """Question -> the recorded entropies of its trajectories, NaN if unknown."""
    return {prompt: pool.entropies(prompt) for prompt in pool}


def threshold(recorded: Mapping[str, list[float]], percentile: float) -> float:
    """The entropy at a percentile of the known entropies; NaN if none is known."""
    entropies = np.fromiter(itertools.chain.from_iterable(recorded.values()), dtype=np.float64)
    known = entropies[~np.isnan(entropies)]
    return float(np.percentile(known, percentile)) if known.size else math.nan


def scorer_of(
    scores: Scores | None, batch_of: Callable[[Sequence[Candidate]], ReplayBatch]
) -> Scorer:
    """The scorer of a policy that is known only by one entropy per candidate.

    The returned function raises ValueError if the number of scores is not that of the candidates.

    Args:
        scores: None for the recorded entropies.
        batch_of: makes the batch that `scores` takes.
    """

    def scorer(candidates: Sequence[Candidate]) -> list[TokenScores]:
        if scores is None:
            entropies = np.array([each.entropy for _, each in candidates], dtype=np.float64)
        else:
            entropies = np.asarray(scores(batch_of(candidates)), dtype=np.float64)
        if entropies.shape != (len(candidates),):
            allowed = f"must be ({len(candidates)},), one per candidate"
            raise ValueError(f"scores has shape {entropies.shape}: {allowed}")
        pairs = zip(entropies, candidates, strict=True)
        return [_scores(entropy, trajectory) for entropy, (_, trajectory) in pairs]

    return scorer


def _scores(entropy: float, trajectory: Trajectory) -> TokenScores:
    """Scores with this mean entropy: of one token, or of all if a loss mask selects some."""
    count = 1 if trajectory.loss_mask is None else len(trajectory)
    return TokenScores(np.full(count, entropy), np.zeros(count))
