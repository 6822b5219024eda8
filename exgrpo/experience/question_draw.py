"""Which of a pool's questions are drawn for replay, by the keys of the draw, and how likely that was."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_bucket_manager import ExperienceBucketManager
from exgrpo.experience.replay_log import Odds
from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler


class QuestionDraw:
    """Draws from the drawable buckets, or from one half of them by order of entry (`exp_sample_range`)."""

    def __init__(self, config: ExperienceConfig) -> None:
        self._eligible = config.drawable_buckets
        self._range = config.exp_sample_range
        self._sampler = WeightedBucketSampler(
            config.exp_bucket_manager, config.rollout_n, config.exp_bucket_mean, config.exp_bucket_sigma
        )

    def choose(
        self, questions: ExperienceBucketManager, count: int, rng: np.random.Generator, exclude: Collection[str]
    ) -> list[str]:
        """As ExperiencePool.choose, from these questions."""
        if count < 0:
            raise ValueError(f"count={count}: must be 0 or more")
        if self._range != "all":
            return self._sampler.sample(self._half(questions, exclude), count, rng)
        buckets = {bucket: questions.members(bucket) for bucket in self._eligible}
        return self._sampler.sample(buckets, count, rng, questions.positions(exclude))

    def odds(
        self, questions: ExperienceBucketManager, drawn: Collection[str], exclude: Collection[str]
    ) -> dict[str, Odds]:
        """As ExperiencePool.odds."""
        if self._range != "all":
            room = {bucket: len(members) for bucket, members in self._half(questions, exclude).items()}
        else:
            barred = questions.positions(exclude)
            room = {bucket: len(questions.members(bucket)) - len(barred.get(bucket, ())) for bucket in self._eligible}
        probability = self._sampler.probabilities(room)
        buckets = {question: questions.place(question)[0] for question in drawn}
        return {name: Odds(bucket, probability[bucket], room[bucket], len(drawn)) for name, bucket in buckets.items()}

    def _half(self, questions: ExperienceBucketManager, exclude: Collection[str]) -> dict[int, list[str]]:
        return questions.half(self._eligible, first=self._range == "first_half", exclude=exclude)
