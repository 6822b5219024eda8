"""Replay for any training loop: a buffer of successes over the trainer's pool and selector.

Requires numpy only; `exgrpo.buffer.tensors` (entropies, weights and the loss) and
`exgrpo.buffer.policies` (rollouts as rows) require torch and are imported by their own names.
"""

from exgrpo.buffer.difficulty_bucketer import DifficultyBucketer
from exgrpo.buffer.records import ReplayBatch
from exgrpo.buffer.selective_replay import SelectiveReplay
from exgrpo.buffer.trajectory_buffer import TrajectoryBuffer

__all__ = ["DifficultyBucketer", "ReplayBatch", "SelectiveReplay", "TrajectoryBuffer"]
