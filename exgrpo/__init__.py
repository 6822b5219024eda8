"""exgrpo: experience replay (ExGRPO, arXiv 2510.02245) for stock verl.

Importing this package imports nothing else. The framework-free names below are loaded at first use (PEP 562), so that a
process that only asks for the version pays for neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exgrpo.config import ExperienceConfig
    from exgrpo.experience.experience_bucket_manager import ExperienceBucketManager
    from exgrpo.experience.experience_pool import ExperiencePool, Outcome
    from exgrpo.experience.trajectory import RolloutGroup, Trajectory
    from exgrpo.experience.trajectory_selector import TrajectorySelector, mean_entropy, perplexity
    from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler, bucket_weights
    from exgrpo.mix_core_alg import mixed_policy_loss

__version__ = "0.1.0"

_HOME = {
    "ExperienceBucketManager": "exgrpo.experience.experience_bucket_manager",
    "ExperienceConfig": "exgrpo.config",
    "ExperiencePool": "exgrpo.experience.experience_pool",
    "Outcome": "exgrpo.experience.experience_pool",
    "RolloutGroup": "exgrpo.experience.trajectory",
    "Trajectory": "exgrpo.experience.trajectory",
    "TrajectorySelector": "exgrpo.experience.trajectory_selector",
    "WeightedBucketSampler": "exgrpo.experience.weighted_bucket_sampler",
    "bucket_weights": "exgrpo.experience.weighted_bucket_sampler",
    "mean_entropy": "exgrpo.experience.trajectory_selector",
    "mixed_policy_loss": "exgrpo.mix_core_alg",
    "perplexity": "exgrpo.experience.trajectory_selector",
}

__all__ = [
    "ExperienceBucketManager",
    "ExperienceConfig",
    "ExperiencePool",
    "Outcome",
    "RolloutGroup",
    "Trajectory",
    "TrajectorySelector",
    "WeightedBucketSampler",
    "__version__",
    "bucket_weights",
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
