"""One trajectory for each drawn question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import TrajectorySelector

Pair = tuple[str, Trajectory]
Score = Callable[[Sequence[Pair]], npt.ArrayLike]


def choose(
    candidates: Sequence[Sequence[Pair]], selector: TrajectorySelector, score: Score, rng: np.random.Generator
) -> list[Pair]:
    """Of each question's candidates the one the selector takes.

    Args:
        candidates: one or more of each question.
        score: scores [n] of n candidates; called once at most, with those of all questions that leave a choice.

    Raises:
        ValueError: the scores are not as many as the candidates, or all of one question's are NaN.
    """
    open_ = [pairs for pairs in candidates if len(pairs) > 1]
    flat = [pair for pairs in open_ for pair in pairs]
    scores = np.zeros(len(flat))
    if flat and selector.needs_scores:
        scores = np.asarray(score(flat), dtype=np.float64)
        if scores.shape != (len(flat),):
            raise ValueError(f"scores has shape {scores.shape}: must be ({len(flat)},), one a candidate")
    chosen, at = [], 0
    for pairs in candidates:
        if len(pairs) == 1:
            chosen.append(pairs[0])
        else:
            chosen.append(pairs[selector.choose(scores[at : at + len(pairs)], rng)])
            at += len(pairs)
    return chosen
