"""Rules of the studies, for the trainer's keys: pkg://study_rules:name."""

from __future__ import annotations

import random

from exgrpo import RolloutGroup
from exgrpo.experience.question_id import question_id

LONGEST = 16  # characters of a question of these tasks


def question_length(group: RolloutGroup, rollout_n: int) -> int:
    """Difficulty by the text, whatever its rollouts did: the longest questions are filed under the fewest successes."""
    return max(1, rollout_n - 1 - len(group.question) * (rollout_n - 1) // (LONGEST + 1))


def by_chance(group: RolloutGroup, rollout_n: int) -> int:
    """Difficulty that says nothing: for each question one of 1..K-1, always the same."""
    return random.Random(question_id(group.question)).choice(range(1, rollout_n))
