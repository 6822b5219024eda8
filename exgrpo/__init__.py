"""exgrpo: experience replay (ExGRPO, arXiv 2510.02245) for stock verl.

Importing this package imports nothing else. The names below are loaded at first use (PEP 562), so
that a process that only needs the version loads neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

_NAMES = {
    "exgrpo.advantages": "group_advantages",
    "exgrpo.experience": (
        "ExperienceBucketManager ExperienceConfig ExperiencePool ExperienceReplay Outcome "
        "RolloutGroup Trajectory TrajectorySelector WeightedBucketSampler "
        "bucket_weights mean_entropy perplexity"
    ),
    "exgrpo.mix_core_alg": "mixed_policy_loss",
    "exgrpo.buffer": "DifficultyBucketer ReplayBatch SelectiveReplay TrajectoryBuffer",
    "exgrpo.buffer.tensors": "compute_entropy compute_grpo_loss compute_importance_weights",
    "exgrpo.saved.pool_folder": "PoolFolder",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:  # `*` and `as` hand the types on to who checks a program that uses them
    from exgrpo.advantages import group_advantages as group_advantages
    from exgrpo.buffer import *  # noqa: F403
    from exgrpo.buffer.tensors import compute_entropy as compute_entropy
    from exgrpo.buffer.tensors import compute_grpo_loss as compute_grpo_loss
    from exgrpo.buffer.tensors import compute_importance_weights as compute_importance_weights
    from exgrpo.experience import *  # noqa: F403
    from exgrpo.mix_core_alg import mixed_policy_loss as mixed_policy_loss
    from exgrpo.saved.pool_folder import PoolFolder as PoolFolder
else:
    __all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
