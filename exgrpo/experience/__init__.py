"""Which past rollouts are kept, which questions and trajectories are replayed; numpy only."""

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_bucket_manager import ExperienceBucketManager
from exgrpo.experience.experience_pool import ExperiencePool, Outcome
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.experience.trajectory_selector import TrajectorySelector, mean_entropy, perplexity
from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler, bucket_weights

__all__ = [
    "ExperienceBucketManager",
    "ExperienceConfig",
    "ExperiencePool",
    "ExperienceReplay",
    "Outcome",
    "RolloutGroup",
    "Trajectory",
    "TrajectorySelector",
    "WeightedBucketSampler",
    "bucket_weights",
    "mean_entropy",
    "perplexity",
]
