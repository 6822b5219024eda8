"""The replaceable rules of replay: a table for each key (its default): the signature.

trainer.exp_bucket_manager (normal): (successes [n], rollout_n, mean, sigma) -> log-weights
trainer.exp_metric (ent): (entropies_T, log_probs_T, trajectory) -> score
trainer.exp_difficulty (released): (groups, rollout_n) -> a bucket 0..K for each
trainer.exp_retirement (all_solved): (group, rollout_n) -> whether the question is retired
trainer.exp_eviction (highest_entropy): (trajectory) -> rank, the highest is dropped first
trainer.exp_same (tokens): (trajectory) -> a key, equal for what counts as the same success
trainer.exp_question_choice (bucket): (questions, step) -> weights [n], a `QuestionFacts`
trainer.exp_group_choice (uniform): (groups, step) -> weights [n], a `GroupFacts`

Rules are pure functions; a key takes your own by ``pkg://module:name`` or ``path/file.py:name``.
That of `exp_question_choice` may be a class with a memory (exgrpo.experience.question_memory).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.open_table import OpenTable

Array: TypeAlias = npt.NDArray[Any]
BucketWeights = Callable[[Array, int, float, float], Array]
Metric = Callable[[Array, Array, Trajectory], float]
Difficulty = Callable[[Sequence[RolloutGroup], int], Sequence[int]]
Retirement = Callable[[RolloutGroup, int], bool]
Eviction = Callable[[Trajectory], float]
Same = Callable[[Trajectory], Hashable]


class QuestionFacts(NamedTuple):
    """What is known of the questions that may be drawn, int64 [n] each.

    Attributes:
        bucket: the success count that each is filed under, 1 to K.
        visits: how many fresh groups of it were observed.
        last_draw: the step that last drew it for replay, -1: none did.
        newest_success: the step of its newest fresh success, -1: none is known.
    """

    bucket: Array
    visits: Array
    last_draw: Array
    newest_success: Array


class GroupFacts(NamedTuple):
    """What is known of the past groups that may be drawn, [n] each.

    Attributes:
        step: int64, the step whose rollouts they are.
        solved: float64, share of right rollouts of the newest fresh group of the same question.
        advantage: float64, mean absolute advantage of the group's rollouts.
    """

    step: Array
    solved: Array
    advantage: Array


QuestionChoice = Callable[[QuestionFacts, int], Array]
GroupChoice = Callable[[GroupFacts, int], Array]


# -- which questions are drawn: the log-weight of each bucket, by its success count out of rollout_n


def normal(successes: Array, rollout_n: int, mean: float, sigma: float) -> Array:
    """A normal density over counts, centred on mean * K (section 4.1 and Table 3)."""
    return -0.5 * ((successes - mean * rollout_n) / sigma) ** 2


def linear(successes: Array, rollout_n: int, mean: float, sigma: float) -> Array:
    """Proportional to the count."""
    return np.log(successes)


def sqrt(successes: Array, rollout_n: int, mean: float, sigma: float) -> Array:
    """Proportional to the square root of the count."""
    return 0.5 * np.log(successes)


def linear_clip(successes: Array, rollout_n: int, mean: float, sigma: float) -> Array:
    """Proportional to the count up to K / 2."""
    return np.log(np.minimum(successes, rollout_n / 2))


# -- which trajectory is chosen: its score under the current policy, from [T] values of its action t


def ent(entropies_T: Array, log_probs_T: Array, trajectory: Trajectory) -> float:
    """Mean token entropy in nats (section 3.2)."""
    values_T = np.asarray(entropies_T, dtype=np.float64)
    # .mean() gives the same and costs twice as much
    return float(np.add.reduce(values_T)) / values_T.size


def ppl(entropies_T: Array, log_probs_T: Array, trajectory: Trajectory) -> float:
    """Perplexity, exp of the mean negative log-likelihood (section F.3)."""
    return float(np.exp(-np.asarray(log_probs_T, dtype=np.float64).mean()))


# -- filing and retiring questions, dropping trajectories ---------------------------------------


def difficulty(
    *, bounded_rewards: bool = False, collects_all: bool = False
) -> Callable[[Difficulty], Difficulty]:
    """The traits of a rule for `exp_difficulty`; one without the decorator has neither.

    Args:
        bounded_rewards: it is for rewards from 0 to 1; any other ends the run in one line.
        collects_all: groups are collected up to bucket K, where `experience_rbound` does not say;
            otherwise up to K - 1.
    """

    def mark(rule: Difficulty) -> Difficulty:
        rule.__dict__.update(bounded_rewards=bounded_rewards, collects_all=collects_all)
        return rule

    return mark


@difficulty(bounded_rewards=True)
def released(groups: Sequence[RolloutGroup], rollout_n: int) -> list[int]:
    """The successes of the whole group, the replayed one counted (Algorithm 1, released code).

    A group that lost rollouts counts by its share of successes, rounded half to even.
    """
    return [round((g.solved + g.replayed) * rollout_n / (g.size + g.replayed)) for g in groups]


@difficulty(bounded_rewards=True)
def mean_reward(groups: Sequence[RolloutGroup], rollout_n: int) -> list[int]:
    """The mean reward of the fresh rollouts, 0 to 1, as a share of K, rounded half to even."""
    return [round(min(1.0, max(0.0, g.mean_reward)) * rollout_n) for g in groups]


@difficulty(collects_all=True)
def reward_std(groups: Sequence[RolloutGroup], rollout_n: int) -> list[int]:
    """How much each group's rewards vary, min-max normalised over the step's groups, times K.

    For continuous rewards (section 5.3 and Table 2 of the paper's second version). The replayed
    reward is one of the group's. Where all groups vary alike, all are 0.
    """
    deviations = np.array([np.std(g.all_rewards) for g in groups])
    low, span = deviations.min(initial=math.inf), np.ptp(deviations) if groups else 0.0
    shares = (deviations - low) / span if span > 0 else np.zeros(len(groups))
    return [round(share * rollout_n) for share in shares.tolist()]


def all_solved(group: RolloutGroup, rollout_n: int) -> bool:
    """Every rollout of a complete group is correct; one that lost rollouts is no evidence."""
    return group.size + group.replayed == rollout_n and group.solved == group.size


def never(group: RolloutGroup, rollout_n: int) -> bool:
    """No question is retired."""
    return False


def highest_entropy(trajectory: Trajectory) -> float:
    """The recorded entropy; a trajectory of unknown entropy is dropped before any other."""
    return math.inf if math.isnan(trajectory.entropy) else trajectory.entropy


def lowest_entropy(trajectory: Trajectory) -> float:
    """The reverse, for `exp_select_mode=argmax`; unknown entropies are dropped first too."""
    return math.inf if math.isnan(trajectory.entropy) else -trajectory.entropy


def oldest(trajectory: Trajectory) -> float:
    """The age: the trajectory of the earliest step is dropped first."""
    return -trajectory.step


def newest(trajectory: Trajectory) -> float:
    """The reverse of `oldest`: a question's first successes are kept for ever."""
    return trajectory.step


# -- what is the same success: the newer replaces the older --------------------------------------


def same_tokens(trajectory: Trajectory) -> Hashable:
    """The tokens, or the note where there are none."""
    return trajectory.key


def bag(trajectory: Trajectory) -> Hashable:
    """The tokens in any order."""
    return np.sort(trajectory.tokens).tobytes()


# -- weights of a draw, 0 or more: 0 is never drawn, and a draw of equal weights is uniform -------


def longest_ago(questions: QuestionFacts, step: int) -> Array:
    """The steps since a question was drawn; for one that never was all steps, and one."""
    return step - questions.last_draw


def uniform(groups: GroupFacts, step: int) -> Array:
    """All alike."""
    return np.ones(len(groups.step))


def headroom(groups: GroupFacts, step: int) -> Array:
    """1 minus the success rate of their question today (arXiv 2609.03941)."""
    return 1.0 - groups.solved


def age(groups: GroupFacts, step: int) -> Array:
    """Half the weight for twice the age."""
    return 1.0 / (1.0 + step - groups.step)


def advantage(groups: GroupFacts, step: int) -> Array:
    """The mean absolute advantage: most for a group that is half right."""
    return groups.advantage


BUCKET = "bucket"  # questions are drawn by their buckets' weights, exp_bucket_manager
RANDOM = "random"  # the metric that needs no scores
BUCKET_WEIGHTS: OpenTable[BucketWeights] = OpenTable(
    ("successes", "rollout_n", "mean", "sigma"),
    {"normal": normal, "linear": linear, "sqrt": sqrt, "linear_clip": linear_clip},
)
METRICS: OpenTable[Metric] = OpenTable(
    ("entropies_T", "log_probs_T", "trajectory"), {"ent": ent, "ppl": ppl}
)
DIFFICULTIES: OpenTable[Difficulty] = OpenTable(
    ("groups", "rollout_n"),
    {"released": released, "mean_reward": mean_reward, "reward_std": reward_std},
)
RETIREMENTS: OpenTable[Retirement] = OpenTable(
    ("group", "rollout_n"), {"all_solved": all_solved, "never": never}
)
EVICTIONS: OpenTable[Eviction] = OpenTable(
    ("trajectory",),
    {
        "highest_entropy": highest_entropy,
        "lowest_entropy": lowest_entropy,
        "oldest": oldest,
        "newest": newest,
    },
)
SAME: OpenTable[Same] = OpenTable(("trajectory",), {"tokens": same_tokens, "bag": bag})
QUESTION_CHOICES: OpenTable[QuestionChoice] = OpenTable(
    ("questions", "step"), {"longest_ago": longest_ago}, with_memory=True
)
GROUP_CHOICES: OpenTable[GroupChoice] = OpenTable(
    ("groups", "step"),
    {"uniform": uniform, "headroom": headroom, "age": age, "advantage": advantage},
)
