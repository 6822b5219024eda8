"""The replay pool (section 4.1): which past rollouts are kept, and which questions are retired."""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exgrpo.experience import rules
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_bucket_manager import BucketState, ExperienceBucketManager
from exgrpo.experience.replay_log import ReplayLog
from exgrpo.experience.replayed_group import Odds
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.experience.trajectory_store import StoreCounters, TrajectoryStore
from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler

_logger = logging.getLogger(__name__)
_AGES = {"age_median": 0.5, "age_p95": 0.95}  # of the trajectories, in steps


class Outcome(enum.Enum):
    """What ExperiencePool.observe did with a group."""

    STORED = "stored"
    RETIRED = "retired"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Snapshot:
    """A pool at one moment; valid until the pool changes.

    Attributes:
        state: buckets and retired questions.
        history: the metrics of each step.
        serials: int64 [n], serial numbers of the trajectories, ascending.
        next_serial: the next serial number to assign.
        tokens: number of tokens of all trajectories.
        counters: the store's counters (StoreCounters).
        records: (first, last) -> (serial, question, trajectory), both included.
        replays: what was replayed, by step.
    """

    state: BucketState
    history: Sequence[Mapping[str, float]]
    serials: npt.NDArray[np.int64]
    next_serial: int
    tokens: int
    counters: Mapping[str, int]
    records: Callable[[int, int], Iterator[tuple[int, str, Trajectory]]]
    replays: ReplayLog


class ExperiencePool:
    """Questions in buckets by their latest success count, with the trajectories that solved them.

    Every question that has a trajectory may be drawn (Algorithm 1), so that all are in buckets 1 to
    K. Owned by one caller; only `choose` is random, and its generator is an argument.

    Five bounds hold after every call (config: experience_max_*). Above the bound per question, the
    eviction rule decides which trajectory is dropped first; above the bounds on the whole pool, the
    oldest recording is.

    Attributes:
        replays: what has been replayed so far, and why; saved with the pool.
    """

    def __init__(self, config: ExperienceConfig) -> None:
        self._config = config
        self._buckets = ExperienceBucketManager(config.rollout_n)
        self._store = TrajectoryStore(
            config.experience_max_per_question,
            config.experience_max_trajectories,
            config.experience_max_bytes,
            rules.EVICTIONS.load("trainer.exp_eviction", config.exp_eviction),
            rules.SAME.load("trainer.exp_same", config.exp_same),
        )
        self._sampler = WeightedBucketSampler(
            config.exp_bucket_manager,
            config.rollout_n,
            config.exp_bucket_mean,
            config.exp_bucket_sigma,
        )
        self._difficulty = rules.DIFFICULTIES.load("trainer.exp_difficulty", config.exp_difficulty)
        self._retires = rules.RETIREMENTS.load("trainer.exp_retirement", config.exp_retirement)
        self._history: list[dict[str, float]] = []
        self.replays = ReplayLog()

    def buckets_of(self, groups: Sequence[RolloutGroup]) -> list[int]:
        """The bucket 0..K of each of a step's groups, by the difficulty rule.

        Raises:
            ValueError: the rule does not return one for each.
        """
        rollout_n = self._config.rollout_n
        buckets = self._difficulty(groups, rollout_n)
        allowed = range(rollout_n + 1)
        listed = isinstance(buckets, (Sequence, np.ndarray)) and len(buckets) == len(groups)
        if not listed or any(bucket not in allowed for bucket in buckets):
            key, given = f"trainer.exp_difficulty={self._config.exp_difficulty}", str(buckets)[:200]
            raise ValueError(
                f"{key}: returned {given} for {len(groups)} groups: "
                f"must be an integer between 0 and {rollout_n} for each"
            )
        return [int(bucket) for bucket in buckets]

    def observe(self, group: RolloutGroup, bucket: int | None = None) -> Outcome:
        """Apply the management rule to one question's group of one step (section 4.1, Algorithm 1).

        A question that the retirement rule retires is dropped for good. A group with lbound <
        bucket <= rbound is collected: its successes are stored, and its question is filed under the
        bucket if it has a fresh success or is in the pool already. Any other group leaves its
        question where it is.

        Args:
            bucket: the group's, of `buckets_of` its step; default: as if it were alone.

        Raises:
            ValueError: more than K rows, or no bucket by the rule; nothing has changed.
        """
        rollout_n, question = self._config.rollout_n, group.question
        if group.size + group.replayed > rollout_n:
            rows = f"has {group.size} fresh and {group.replayed} replayed rows"
            raise ValueError(f"group of question {question!r} {rows}: must be at most {rollout_n}")
        if self._buckets.is_retired(question):
            return Outcome.SKIPPED
        if self._retires(group, rollout_n):
            self._store.counters.retired += self._store.discard(question)
            self._buckets.retire(question)
            return Outcome.RETIRED
        if bucket is None:
            (bucket,) = self.buckets_of([group])
        collected = bucket in self._config.collected_buckets
        stored = collected and bool(group.successes)
        if stored or (question in self._buckets and collected):
            self._put(question, bucket)
        if not stored:
            return Outcome.SKIPPED
        self._record(question, group.successes)
        return Outcome.STORED

    def _put(self, question: str, bucket: int) -> None:
        """File a question: never in bucket 0, since what the pool holds has been solved."""
        self._buckets.put(question, bucket or 1)

    def file(self, question: str, bucket: int, trajectory: Trajectory | None = None) -> None:
        """Put a question into this bucket, with a trajectory from any policy or author.

        Args:
            trajectory: stored if present; without one, only a question held is moved.

        Raises:
            ValueError: the question is retired, or the bucket is not in 0..K.
        """
        if trajectory is not None or question in self._buckets:
            self._put(question, bucket)
        if trajectory is not None:
            self._record(question, [trajectory])

    def _record(self, question: str, trajectories: Collection[Trajectory]) -> None:
        for trajectory in trajectories:
            self._store.record(question, trajectory)
        self._store.trim(question)
        self._forget(self._store.shrink())

    def _forget(self, emptied: Collection[str]) -> None:
        for question in emptied:
            self._buckets.remove(question)

    def expire(self, step: int) -> None:
        """Drop what will be too old in the step after this one (`experience_max_age`)."""
        if self._config.experience_max_age is not None:
            self._forget(self._store.expire(before=step + 1 - self._config.experience_max_age))

    def end_step(self, step: int, noted: Mapping[str, float]) -> dict[str, float]:
        """Close a step: drop what will be too old in the next one, and note the step.

        Args:
            step: the global step, counted as in the trajectories.
            noted: the caller's measurements; kept in the history beside the pool's metrics.

        Returns:
            The pool's metrics, including ages.
        """
        self.expire(step)
        ages = {name: self._store.age_quantile(share, step) for name, share in _AGES.items()}
        metrics = self.metrics() | ages
        self._history.append({"step": float(step), **metrics, **noted})
        return metrics

    @property
    def rollout_n(self) -> int:
        """K."""
        return self._config.rollout_n

    @property
    def trajectories(self) -> int:
        """Number of trajectories held."""
        return len(self._store)

    def __contains__(self, question: str) -> bool:
        return question in self._buckets

    def __iter__(self) -> Iterator[str]:
        """The questions that have a trajectory, in their order of entry."""
        return iter(self._buckets)

    def bucket(self, question: str) -> int:
        """The bucket of a question, 0..K. KeyError if the pool does not hold the question."""
        return self._buckets.place(question)[0]

    @property
    def eligible(self) -> int:
        """Number of questions that may be drawn, regardless of exp_sample_range."""
        return len(self._buckets)

    @property
    def retired(self) -> list[str]:
        """The retired questions in order of retirement, also after a load."""
        return self._buckets.retired

    def keep_only(self, questions: Container[str], longest: int) -> int:
        """Drop trajectories of other questions or of more than `longest` tokens; how many."""
        before = len(self._store)
        unknown = [question for question in self._buckets if question not in questions]
        for question in unknown:
            self._store.discard(question)
            self._buckets.remove(question)
        self._forget(self._store.drop_longer(longest))
        return before - len(self._store)

    def choose(
        self, count: int, rng: np.random.Generator, exclude: Collection[str] = frozenset()
    ) -> list[str]:
        """Up to `count` distinct eligible questions in random order; fewer if there are not enough.

        Args:
            exclude: questions that must not be drawn, whether or not the pool has them.

        Raises:
            ValueError: count is negative.
        """
        if count < 0:
            raise ValueError(f"count={count}: must be 0 or more")
        buckets, barred = self._open(exclude)
        return self._sampler.sample(buckets, count, rng, barred)

    def odds(
        self, drawn: Collection[str], exclude: Collection[str] = frozenset()
    ) -> dict[str, Odds]:
        """Question -> the odds with which `choose`, by its `exclude`, has just drawn it."""
        buckets, barred = self._open(exclude)
        room = {each: len(buckets[each]) - len(barred.get(each, ())) for each in buckets}
        probability, odds = self._sampler.probabilities(room), {}
        for name in drawn:
            bucket = self.bucket(name)
            odds[name] = Odds(bucket, probability[bucket], room[bucket], len(drawn))
        return odds

    def _open(
        self, exclude: Collection[str]
    ) -> tuple[Mapping[int, Sequence[str]], Mapping[int, Sequence[int]]]:
        """Bucket -> questions, and the positions of those excluded (`exp_sample_range`)."""
        drawable, half = range(1, self.rollout_n + 1), self._config.exp_sample_range
        if half != "all":
            return self._buckets.half(drawable, first=half == "first_half", exclude=exclude), {}
        members = {bucket: self._buckets.members(bucket) for bucket in drawable}
        return members, self._buckets.positions(exclude)

    def candidates(self, question: str) -> tuple[Trajectory, ...]:
        """The question's trajectories in the order of recording: views that stay valid.

        Raises:
            KeyError: the pool holds no trajectory of the question.
        """
        if question not in self._buckets:
            state = "retired" if self._buckets.is_retired(question) else "not in the pool"
            raise KeyError(f"no candidates for question {question!r}: it is {state}")
        return self._store.candidates(question)

    def entropies(self, question: str) -> list[float]:
        """Recorded entropies of a question's candidates, NaN if unknown. KeyError as `candidates`.

        Many times cheaper than `candidates`, for whoever goes through the whole pool.
        """
        return self._store.entropies(question)

    def metrics(self) -> dict[str, float]:
        """The pool's current metrics, always with the same keys; counters are cumulative.

        `pool_bytes` is the pool's memory: 8 bytes per token and 200 per trajectory.
        """
        counters = dataclasses.asdict(self._store.counters)
        measured = {
            "pool_questions": len(self._buckets),
            "pool_trajectories": len(self._store),
            "pool_tokens": self._store.tokens,
            "pool_bytes": self._store.memory_bytes,
            "eligible_questions": self.eligible,
            "retired_questions": self._buckets.retired_count,
            "retired_trajectories": counters.pop("retired"),
            "evicted": self._store.counters.evicted,
            **counters,
            **{f"bucket_{bucket}": size for bucket, size in enumerate(self._buckets.sizes())},
        }
        return {name: float(value) for name, value in measured.items()}

    def snapshot(self) -> Snapshot:
        """Everything the pool holds; valid until it changes."""
        return Snapshot(
            state=self._buckets.state(),
            history=self._history,
            serials=self._store.serials(),
            next_serial=self._store.next_serial,
            tokens=self._store.tokens,
            counters=dataclasses.asdict(self._store.counters),
            records=self._store.records,
            replays=self.replays,
        )

    @classmethod
    def restore(
        cls,
        config: ExperienceConfig,
        state: BucketState,
        history: Sequence[Mapping[str, float]],
        records: Iterable[tuple[int, str, bytes]],
        next_serial: int,
        counters: Mapping[str, int],
        replays: ReplayLog | None = None,
    ) -> ExperiencePool:
        """Rebuild a pool from a snapshot, with the same draws; `config`'s bounds apply at once.

        Questions filed under 0, as `exp_difficulty=fresh` of 0.2.0 did, are filed under 1, with a
        warning.

        Args:
            records: (serial, question, packed trajectory), ascending by serial.

        Raises:
            ValueError: the parts are inconsistent.
        """
        pool = cls(config)
        pool._buckets = ExperienceBucketManager.from_state(config.rollout_n, state)
        pool._store.restore(records, next_serial, StoreCounters(**counters))
        if set(pool._buckets) != pool._store.questions():
            raise ValueError("questions in buckets: must be those that have trajectories")
        pool._history = [dict(row) for row in history]
        pool.replays = replays or ReplayLog()
        for question in tuple(pool._store.questions()):
            pool._store.trim(question)
        pool._forget(pool._store.shrink())
        if fallen := tuple(pool._buckets.members(0)):
            _logger.warning(
                "exgrpo: %d questions of the saved pool are filed under 0 successes, by a rule"
                " that is gone (exp_difficulty=fresh) or by an import: they go to 1 and are drawn",
                len(fallen),
            )
        for question in fallen:
            pool._put(question, 0)
        return pool
