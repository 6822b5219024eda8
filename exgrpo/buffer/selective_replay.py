"""Decide whether a step replays, and draw what it replays."""

from __future__ import annotations

from dataclasses import dataclass

from exgrpo.buffer.records import ReplayBatch
from exgrpo.buffer.strategies import NothingLeft, Range, Scores, checked_range
from exgrpo.buffer.trajectory_buffer import TrajectoryBuffer
from exgrpo.refusal import refuse

_SAMPLED_AS = {  # strategies of TrajectoryBuffer.sample
    "entropy_guided": "medium_difficulty_low_entropy",
    "difficulty_guided": "medium_difficulty_random",
    "uniform": "uniform_random",
}


@dataclass(frozen=True)
class SelectiveReplay:
    """Replays in a random share of the steps. No state: the buffer's generator draws.

    Attributes:
        strategy: `entropy_guided`: questions of medium difficulty, with the lowest-entropy
            trajectory of each, as in the paper; `difficulty_guided`: the same questions with random
            trajectories; `uniform`: both at random.
        replay_probability: probability that a step replays, 0 to 1.
        medium_difficulty_range: levels of difficulty that `entropy_guided` and `difficulty_guided`
            draw from.

    Raises:
        ValueError: one line with the name, the value and what is allowed.
    """

    strategy: str = "entropy_guided"
    replay_probability: float = 0.3
    medium_difficulty_range: Range = (0.3, 0.7)

    def __post_init__(self) -> None:
        if self.strategy not in _SAMPLED_AS:
            refuse("strategy", repr(self.strategy), f"one of {', '.join(_SAMPLED_AS)}")
        if not 0 <= self.replay_probability <= 1:
            refuse("replay_probability", self.replay_probability, "between 0 and 1")
        checked_range("medium_difficulty_range", self.medium_difficulty_range)

    def choose(
        self, buffer: TrajectoryBuffer, size: int, scores: Scores | None = None
    ) -> ReplayBatch | None:
        """What to replay in this step, of at most `size` questions; None if there is nothing.

        Draws one number from the buffer's generator, and those of `TrajectoryBuffer.sample` if the
        step replays.
        Entropies are not bounded by a percentile: every question in the range has candidates.

        Args:
            scores: as in TrajectoryBuffer.sample.
        """
        with buffer.alone():
            if buffer.rng.random() >= self.replay_probability:
                return None
            levels = None if self.strategy == "uniform" else self.medium_difficulty_range
            try:
                return buffer.sample(_SAMPLED_AS[self.strategy], size, levels, None, scores)
            except NothingLeft:
                return None
