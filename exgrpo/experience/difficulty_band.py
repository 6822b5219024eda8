"""The success rate around which questions are drawn: a constant, or one that follows the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_draw import first_centre
from exgrpo.experience.trajectory import RolloutGroup

STEP = 0.1  # how far towards a step's success rate the centre moves


class DifficultyBand:
    """The centre of the draw's normal density, by `exp_bucket_mean`.

    With `batch` it moves a tenth of the way to the mean success rate of each step's partly solved questions, as the
    pool's questions are of that kind: groups of equal rewards say nothing about what can be learnt from. Replayed
    questions count as well, by their fresh rollouts.

    Attributes:
        mean: the centre, as a share of K.
        follows: whether it moves.
    """

    def __init__(self, config: ExperienceConfig) -> None:
        self.follows = config.exp_bucket_mean == "batch"
        self.mean = first_centre(config)

    def observe(self, groups: Sequence[RolloutGroup], pool: ExperiencePool) -> dict[str, float]:
        """Move by a step's groups, and the pool's draws with it; the new centre as a metric, if it follows."""
        rates = [group.solved / group.size for group in groups if 0 < group.solved < group.size]
        if self.follows and rates:
            self.mean += STEP * (sum(rates) / len(rates) - self.mean)
            pool.centre(self.mean)
        return self.state()

    def state(self) -> dict[str, float]:
        """The centre, if it follows."""
        return {"bucket_mean": self.mean} if self.follows else {}

    def restore(self, state: Mapping[str, Any], pool: ExperiencePool) -> None:
        """Go on from a state; that of a run whose centre did not follow has none."""
        if self.follows:
            self.mean = float(state.get("bucket_mean", self.mean))
            pool.centre(self.mean)
