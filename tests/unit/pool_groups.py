"""Groups of rollouts and what a pool holds of them, for the tests of the pool."""

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory


def success(*tokens, step=1, entropy=0.5):
    return Trajectory(list(tokens), [-0.25 * step] * len(tokens), step, entropy)


def group(question, size, *successes, replayed=0):
    return RolloutGroup(question, size, successes, replayed)


def new_pool(**keys):
    return ExperiencePool(ExperienceConfig(rollout_n=8, **keys))


def tokens_of(pool, question):
    return [tuple(trajectory.tokens.tolist()) for trajectory in pool.candidates(question)]


def bucket_of(pool, question):
    return pool.bucket(question)
