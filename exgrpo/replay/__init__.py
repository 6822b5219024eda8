"""Replay for any training loop: a buffer of successes over the trainer's pool and selector.

Requires numpy only; `exgrpo.replay.tensors` (entropies, weights and the loss) and
`exgrpo.replay.policies` (rollouts as rows) require torch and are imported by their own names.
"""

from exgrpo.replay.difficulty_bucketer import DifficultyBucketer
from exgrpo.replay.records import ReplayBatch
from exgrpo.replay.selective_replay import SelectiveReplay
from exgrpo.replay.trajectory_buffer import TrajectoryBuffer

__all__ = ["DifficultyBucketer", "ReplayBatch", "SelectiveReplay", "TrajectoryBuffer"]
