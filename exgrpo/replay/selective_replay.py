"""Whether a step replays, and what."""

from __future__ import annotations

from dataclasses import dataclass

from exgrpo.replay.records import ReplayBatch
from exgrpo.replay.strategies import NothingLeft, Range, Scores, checked_range
from exgrpo.replay.trajectory_buffer import TrajectoryBuffer

_SAMPLED_AS = {  # strategies of TrajectoryBuffer.sample
    "entropy_guided": "medium_difficulty_low_entropy",
    "difficulty_guided": "medium_difficulty_random",
    "uniform": "uniform_random",
}


@dataclass(frozen=True)
class SelectiveReplay:
    """Replays in a share of the steps. Holds no state: the buffer's generator draws, and is saved with it.

    Attributes:
        strategy: `entropy_guided`, questions of medium difficulty and of each the trajectory of lowest entropy, as the
            paper does; `difficulty_guided`, the same questions and any of their trajectories; `uniform`, any of both.
        replay_probability: that a step replays at all, 0 to 1.
        medium_difficulty_range: levels of difficulty that `entropy_guided` and `difficulty_guided` draw from.

    Raises:
        ValueError: one line with the name, the value and what is allowed.
    """

    strategy: str = "entropy_guided"
    replay_probability: float = 0.3
    medium_difficulty_range: Range = (0.3, 0.7)

    def __post_init__(self) -> None:
        if self.strategy not in _SAMPLED_AS:
            raise ValueError(f"strategy={self.strategy!r}: must be one of {', '.join(_SAMPLED_AS)}")
        if not 0 <= self.replay_probability <= 1:
            raise ValueError(f"replay_probability={self.replay_probability}: must be between 0 and 1")
        checked_range("medium_difficulty_range", self.medium_difficulty_range)

    def choose(self, buffer: TrajectoryBuffer, size: int, scores: Scores | None = None) -> ReplayBatch | None:
        """What to replay in this step, at most `size` questions; None if nothing.

        Advances the buffer's generator by one number, and by what `TrajectoryBuffer.sample` takes if the step replays.
        The percentile of entropy is not bounded: of every question in the range the best trajectory is a candidate.

        Args:
            scores: as of TrajectoryBuffer.sample.
        """
        if buffer.rng.random() >= self.replay_probability:
            return None
        levels = None if self.strategy == "uniform" else self.medium_difficulty_range
        try:
            return buffer.sample(_SAMPLED_AS[self.strategy], size, levels, None, scores)
        except NothingLeft:
            return None
