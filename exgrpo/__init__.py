"""exgrpo: experience replay (ExGRPO, arXiv 2510.02245) for stock verl.

Importing this package imports nothing else. The names below are loaded at first use (PEP 562), so
that a process that only needs the version loads neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exgrpo.experience.config import ExperienceConfig
    from exgrpo.experience.experience_bucket_manager import ExperienceBucketManager
    from exgrpo.experience.experience_pool import ExperiencePool, Outcome
    from exgrpo.experience.experience_trainer_ops import ExperienceReplay
    from exgrpo.experience.trajectory import RolloutGroup, Trajectory
    from exgrpo.experience.trajectory_selector import TrajectorySelector, mean_entropy, perplexity
    from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler, bucket_weights
    from exgrpo.mix_core_alg import mixed_policy_loss
    from exgrpo.replay.difficulty_bucketer import DifficultyBucketer
    from exgrpo.replay.records import ReplayBatch
    from exgrpo.replay.selective_replay import SelectiveReplay
    from exgrpo.replay.tensors import (
        compute_entropy,
        compute_grpo_loss,
        compute_importance_weights,
        group_advantages,
    )
    from exgrpo.replay.trajectory_buffer import TrajectoryBuffer
    from exgrpo.saved.pool_folder import PoolFolder

__version__ = "0.3.0"

_HOME = {
    "DifficultyBucketer": "exgrpo.replay.difficulty_bucketer",
    "ExperienceBucketManager": "exgrpo.experience.experience_bucket_manager",
    "ExperienceConfig": "exgrpo.experience.config",
    "ExperiencePool": "exgrpo.experience.experience_pool",
    "ExperienceReplay": "exgrpo.experience.experience_trainer_ops",
    "Outcome": "exgrpo.experience.experience_pool",
    "PoolFolder": "exgrpo.saved.pool_folder",
    "ReplayBatch": "exgrpo.replay.records",
    "RolloutGroup": "exgrpo.experience.trajectory",
    "SelectiveReplay": "exgrpo.replay.selective_replay",
    "Trajectory": "exgrpo.experience.trajectory",
    "TrajectoryBuffer": "exgrpo.replay.trajectory_buffer",
    "TrajectorySelector": "exgrpo.experience.trajectory_selector",
    "WeightedBucketSampler": "exgrpo.experience.weighted_bucket_sampler",
    "bucket_weights": "exgrpo.experience.weighted_bucket_sampler",
    "compute_entropy": "exgrpo.replay.tensors",
    "compute_grpo_loss": "exgrpo.replay.tensors",
    "compute_importance_weights": "exgrpo.replay.tensors",
    "group_advantages": "exgrpo.replay.tensors",
    "mean_entropy": "exgrpo.experience.trajectory_selector",
    "mixed_policy_loss": "exgrpo.mix_core_alg",
    "perplexity": "exgrpo.experience.trajectory_selector",
}

__all__ = [
    "DifficultyBucketer",
    "ExperienceBucketManager",
    "ExperienceConfig",
    "ExperiencePool",
    "ExperienceReplay",
    "Outcome",
    "PoolFolder",
    "ReplayBatch",
    "RolloutGroup",
    "SelectiveReplay",
    "Trajectory",
    "TrajectoryBuffer",
    "TrajectorySelector",
    "WeightedBucketSampler",
    "__version__",
    "bucket_weights",
    "compute_entropy",
    "compute_grpo_loss",
    "compute_importance_weights",
    "group_advantages",
    "mean_entropy",
    "mixed_policy_loss",
    "perplexity",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
