"""The replay pool (section 3.1): what is kept of past rollouts, under which bounds, and what is retired."""

from __future__ import annotations

import enum
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from exgrpo.config import ExperienceConfig
from exgrpo.experience import pool_files
from exgrpo.experience.experience_bucket_manager import ExperienceBucketManager
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.experience.trajectory_store import TrajectoryStore
from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler


class Outcome(enum.Enum):
    """What ExperiencePool.observe did with a group."""

    STORED = "stored"
    RETIRED = "retired"
    SKIPPED = "skipped"


def success_bucket(group: RolloutGroup, rollout_n: int) -> int:
    """The group's success rate among fresh rollouts as a count out of K, a tie going to the even count.

    With `size` <= K a partially solved question is always in 1..K-1. The released code counts the replayed success in,
    which puts a mixed question one bucket too high.

    Raises:
        ValueError: the group holds more than K rows.
    """
    if group.size + group.replayed > rollout_n:
        rows = f"{group.size} fresh and {group.replayed} replayed rows"
        raise ValueError(f"group of question {group.question!r} has {rows}: must be at most {rollout_n}")
    return round(len(group.successes) * rollout_n / group.size)


class ExperiencePool:
    """Questions in buckets of their latest success count, each with the trajectories that solved it.

    A question is eligible while it has a trajectory, is not retired, and lbound < bucket <= rbound. Owned by one
    caller; nothing here is random but `choose`, whose generator is handed in.
    """

    def __init__(self, config: ExperienceConfig) -> None:
        self._config = config
        self._buckets = ExperienceBucketManager(config.rollout_n)
        self._store = TrajectoryStore(config.experience_max_per_question, config.experience_max_trajectories)
        self._sampler = WeightedBucketSampler(
            config.exp_bucket_manager, config.rollout_n, config.exp_bucket_mean, config.exp_bucket_sigma
        )

    def observe(self, group: RolloutGroup) -> Outcome:
        """Apply the management rule to what one step produced for one question.

        Solved by every rollout of a whole group: retired for good (a group that lost rollouts proves less). Collected,
        if lbound < bucket <= rbound: its successes are stored. Any other question changes its bucket if the pool knows
        it, and keeps its trajectories.

        Raises:
            ValueError: the group holds more than K rows; nothing has changed.
        """
        bucket = success_bucket(group, self._config.rollout_n)
        question = group.question
        if self._buckets.is_retired(question):
            return Outcome.SKIPPED
        complete = group.size + group.replayed == self._config.rollout_n
        if complete and len(group.successes) == group.size:
            self._store.discard(question)
            self._buckets.retire(question)
            return Outcome.RETIRED
        collected = bucket in self._config.eligible_buckets
        if collected or question in self._buckets:
            self._buckets.put(question, bucket)
        if not collected:
            return Outcome.SKIPPED
        for trajectory in group.successes:
            self._store.record(question, trajectory)
        self._store.trim(question)
        for emptied in self._store.shrink():
            self._buckets.remove(emptied)
        return Outcome.STORED

    @property
    def eligible(self) -> int:
        """Number of questions that may be drawn, whatever exp_sample_range says."""
        return sum(len(self._buckets.members(bucket)) for bucket in self._config.eligible_buckets)

    def choose(self, count: int, rng: np.random.Generator, exclude: Collection[str] = frozenset()) -> list[str]:
        """Up to `count` distinct eligible questions in random order; fewer if there are not enough.

        Args:
            exclude: questions that must not be drawn; those the pool does not know are ignored.

        Raises:
            ValueError: count is negative.
        """
        if count < 0:
            raise ValueError(f"count={count}: must be 0 or more")
        if self._config.exp_sample_range != "all":
            return self._sampler.sample(self._half(set(exclude)), count, rng)
        excluded: dict[int, list[int]] = {}
        for question in set(exclude):
            if question in self._buckets:
                bucket, position = self._buckets.place(question)
                excluded.setdefault(bucket, []).append(position)
        buckets = {bucket: self._buckets.members(bucket) for bucket in self._config.eligible_buckets}
        return self._sampler.sample(buckets, count, rng, excluded)

    def candidates(self, question: str) -> tuple[Trajectory, ...]:
        """The question's trajectories in the order of recording: views of the pool's memory, which stay valid.

        Raises:
            KeyError: the pool holds none.
        """
        if question not in self._buckets:
            state = "retired" if self._buckets.is_retired(question) else "not in the pool"
            raise KeyError(f"no candidates for question {question!r}: it is {state}")
        return self._store.candidates(question)

    def metrics(self) -> dict[str, float]:
        """Numbers of the pool as it is, always under the same keys; `stored`, `evicted`, `duplicates` are cumulative.

        `pool_bytes` counts what is stored, 8 bytes a token and 16 a trajectory, without Python's own overhead.
        """
        sizes = {f"bucket_{bucket}": float(size) for bucket, size in enumerate(self._buckets.sizes())}
        return {
            "pool_questions": float(len(self._buckets)),
            "pool_trajectories": float(len(self._store)),
            "pool_tokens": float(self._store.tokens),
            "pool_bytes": float(self._store.payload_bytes),
            "eligible_questions": float(self.eligible),
            "retired_questions": float(self._buckets.retired_count),
            **{name: float(value) for name, value in self._counters().items()},
            **sizes,
        }

    def save(self, folder: str | os.PathLike[str], /, **identity: object) -> None:
        """Write the pool to `folder`, replaced as a whole: a kill at any moment leaves the old state or the new one.

        Args:
            identity: what the pool belongs to, such as the data set's fingerprint; JSON values, which `load` asks for.
        """

        def fill(fresh: Path) -> None:
            rollout_n, state = self._config.rollout_n, self._buckets.state()
            bucket_of = dict(zip(state.questions, state.buckets, strict=True))
            counts = {"questions": len(bucket_of), "retired": len(state.retired), "trajectories": len(self._store)}
            pool_files.write_trajectories(fresh / pool_files.TRAJECTORIES, self._store, bucket_of)
            pool_files.write_questions(fresh / pool_files.QUESTIONS, state, rollout_n)
            pool_files.write_manifest(fresh, rollout_n, identity, counts=counts, counters=self._counters())

        pool_files.replace_folder(Path(folder), fill)

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], config: ExperienceConfig, identity: Mapping[str, object]
    ) -> ExperiencePool:
        """The pool that was saved to `folder`; it makes the same next draws. `config`'s bounds are applied at once.

        Raises:
            FileNotFoundError: naming the missing file.
            ValueError: a checksum, the format, rollout_n or the identity differ; both sides are in the message.
        """
        pool_files.finish_replacement(Path(folder))
        manifest = pool_files.read_manifest(Path(folder), config.rollout_n, identity)
        state = pool_files.read_questions(Path(folder) / pool_files.QUESTIONS)
        names = {question: question for question in state.questions}  # one string a question, not one a trajectory
        records = pool_files.read_trajectories(Path(folder) / pool_files.TRAJECTORIES)
        pool = cls(config)
        pool._buckets = ExperienceBucketManager.from_state(config.rollout_n, state)
        named = ((names[question], packed) for question, packed in records)
        for emptied in pool._store.restore(named, **manifest["counters"]):
            pool._buckets.remove(emptied)
        return pool

    def check_invariants(self) -> None:
        """Raises ValueError unless questions and trajectories agree and the bounds hold; for tests."""
        self._buckets.check_invariants()
        self._store.check_invariants()
        if set(self._buckets) != set(self._store.questions()):
            raise ValueError(f"{len(self._buckets)} questions in buckets, others with trajectories: must be the same")

    def _half(self, exclude: Collection[str]) -> dict[int, list[str]]:
        """Buckets of one half of the eligible questions by order of entry; an odd one in the middle is in both."""
        places = ((question, self._buckets.place(question)[0]) for question in self._buckets)
        eligible = [(question, bucket) for question, bucket in places if bucket in self._config.eligible_buckets]
        first = self._config.exp_sample_range == "first_half"
        half = eligible[: (len(eligible) + 1) // 2] if first else eligible[len(eligible) // 2 :]
        buckets: dict[int, list[str]] = {bucket: [] for bucket in self._config.eligible_buckets}
        for question, bucket in half:
            if question not in exclude:
                buckets[bucket].append(question)
        return buckets

    def _counters(self) -> dict[str, int]:
        return {"stored": self._store.stored, "evicted": self._store.evicted, "duplicates": self._store.duplicates}
