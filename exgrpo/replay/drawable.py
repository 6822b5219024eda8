"""What of a pool a draw may take, by difficulty and recorded entropy, and how a caller's scores choose of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience.choice import Candidate, Look, View
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import Trajectory
from exgrpo.replay.difficulty_bucketer import DifficultyBucketer
from exgrpo.replay.records import ReplayBatch
from exgrpo.replay.strategies import Range

Scores = Callable[[ReplayBatch], npt.ArrayLike]  # n candidates -> their mean token entropies [n] in nats


class NothingLeft(ValueError):
    """Nothing is within the bounds of a draw."""


class Drawable(NamedTuple):
    """Questions that have a candidate.

    Attributes:
        buckets: bucket -> questions in their order of entry; none is empty.
        limit: what a candidate's recorded entropy must not exceed; None: any will do, unknown ones included.
    """

    buckets: dict[int, list[str]]
    limit: float | None

    @classmethod
    def within(
        cls,
        pool: ExperiencePool,
        bucketer: DifficultyBucketer,
        levels: Range | None,
        percentile: float | None,
        known: bool,
    ) -> Drawable:
        """What is left within bounds; a pass over the pool.

        Args:
            levels: of difficulty, ends included; None: any.
            percentile: of all recorded entropies, which a candidate's must not exceed; None: any.
            known: whether a candidate's entropy must be known.
        """
        low, high = levels or (0.0, 1.0)
        prompts = [prompt for prompt in pool if low <= bucketer.level(prompt) <= high]
        limit = None
        if known or percentile is not None:
            recorded = recorded_entropies(pool)
            limit = highest = math.inf if percentile is None else threshold(recorded, percentile)
            prompts = [prompt for prompt in prompts if any(entropy <= highest for entropy in recorded[prompt])]
        buckets: dict[int, list[str]] = {}
        for prompt in prompts:
            buckets.setdefault(pool.bucket(prompt), []).append(prompt)
        return cls(dict(sorted(buckets.items())), limit)

    def has(self, entropy: float) -> bool:
        """Whether a trajectory with that recorded entropy, or NaN, is a candidate."""
        return self.limit is None or entropy <= self.limit


def recorded_entropies(pool: ExperiencePool) -> dict[str, list[float]]:
    """Question -> those of its trajectories, NaN where unknown."""
    return {prompt: pool.entropies(prompt) for prompt in pool}


def threshold(recorded: Mapping[str, list[float]], percentile: float) -> float:
    """The entropy at a percentile of those that are known; NaN if none is."""
    entropies = np.fromiter(itertools.chain.from_iterable(recorded.values()), dtype=np.float64)
    known = entropies[~np.isnan(entropies)]
    return float(np.percentile(known, percentile)) if known.size else math.nan


def look_by(scores: Scores | None, batch_of: Callable[[Sequence[Candidate]], ReplayBatch]) -> Look:
    """How a policy that is known by one number a candidate sees candidates.

    Args:
        scores: None: the recorded entropies.
        batch_of: candidates as `scores` takes them.

    The look raises ValueError if the scores are not as many as the candidates.
    """

    def look(candidates: Sequence[Candidate]) -> list[View]:
        given = [trajectory.entropy for _, trajectory in candidates] if scores is None else scores(batch_of(candidates))
        entropies = np.asarray(given, dtype=np.float64)
        if entropies.shape != (len(candidates),):
            raise ValueError(f"scores has shape {entropies.shape}: must be ({len(candidates)},), one a candidate")
        return [_view(entropy, trajectory) for entropy, (_, trajectory) in zip(entropies, candidates, strict=True)]

    return look


def _view(entropy: float, trajectory: Trajectory) -> View:
    """The number as the entropy of one token; of each where a loss mask picks among them."""
    count = 1 if trajectory.loss_mask is None else len(trajectory)
    return View(np.full(count, entropy), np.zeros(count))
