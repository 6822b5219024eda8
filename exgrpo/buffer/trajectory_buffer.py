"""A replay buffer for any training loop: a pool of single trajectories, drawn by strategy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np

from exgrpo.buffer import buffer_files
from exgrpo.buffer.buffer_files import SavedBuffer
from exgrpo.buffer.difficulty_bucketer import DifficultyBucketer, Measure
from exgrpo.buffer.records import Record, ReplayBatch, flat
from exgrpo.buffer.strategies import (
    AsNamed,
    NothingLeft,
    Scores,
    recorded_entropies,
    resolve,
    scorer_of,
    threshold,
)
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.trajectory_selector import Candidate
from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler
from exgrpo.refusal import refuse, refuse_as
from exgrpo.saved import durable
from exgrpo.saved.pool_folder import PoolFolder

_ELSEWHERE = "a copy would miss what the others add; keep one process for it, or save() and load()"
P = ParamSpec("P")
T = TypeVar("T")


def _alone(
    method: Callable[Concatenate[TrajectoryBuffer, P], T],
) -> Callable[Concatenate[TrajectoryBuffer, P], T]:
    """The method, while no other thread is in one of the buffer's."""

    @wraps(method)
    def waits(self: TrajectoryBuffer, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.alone():
            return method(self, *args, **kwargs)

    return waits


class TrajectoryBuffer:
    """Successes of each question, filed by difficulty and drawn by difficulty and entropy.

    Threads may add, sample and save at the same time: each call waits for the others, a sample's
    `scores` and a save's writing included. Processes may not share a buffer.

    Questions are identified by their prompt. Tier t of n, counted from 1, is bucket t of a pool
    with K = n + 1. Every tier counts as partly solved, since single trajectories cannot show that a
    question is always solved.

    Args:
        max_size: number of trajectories; the oldest recording leaves first.
        difficulty_tiers: number of equal ranges of 0..1 that the sampler weighs, at least 1.
        entropy_percentiles: of recorded entropies, that a sample may use; each in 0..100.
        bucketer: measures difficulty; the buffer takes ownership. Default: one of its own, the
            success rate over each question's last 100 trajectories.
        max_per_question: above it, the highest recorded entropy leaves, unknown ones first.
        max_age: greatest age of a trajectory, `policy_snapshot` minus its step; None: any.
        seed: seed of all draws, or a generator (PCG64, as numpy's default_rng makes it).

    Attributes:
        pool, bucketer: for reading only; change them through the buffer.
        rng: the generator of all draws.

    Raises:
        ValueError: one line with the name, the value and what is allowed.
    """

    def __init__(
        self,
        max_size: int = 100_000,
        difficulty_tiers: int = 5,
        entropy_percentiles: Sequence[float] = (25, 50, 75),
        *,
        bucketer: DifficultyBucketer | None = None,
        max_per_question: int = 8,
        max_age: int | None = None,
        seed: int | np.random.Generator = 0,
    ) -> None:
        _positive("max_size", max_size)
        _positive("max_per_question", max_per_question)
        _positive("max_age", max_age, optional=True)
        self._tiers = _positive("difficulty_tiers", difficulty_tiers)
        self._percentiles = sorted({float(percentile) for percentile in entropy_percentiles})
        for percentile in self._percentiles:
            if not 0 <= percentile <= 100:
                refuse_as(f"entropy_percentiles holds {percentile}", "be between 0 and 100")
        self._config = ExperienceConfig(
            rollout_n=difficulty_tiers + 1,
            experience_max_per_question=max_per_question,
            experience_max_trajectories=max_size,
            experience_max_age=max_age,
        )
        self.rng = np.random.default_rng(seed)
        if not isinstance(self.rng.bit_generator, np.random.PCG64):
            refuse("seed", seed, "an integer or a generator over PCG64, whose state can be saved")
        self.bucketer = DifficultyBucketer() if bucketer is None else bucketer
        self._snapshot = 0
        self.pool, self._on_disk = ExperiencePool(self._config), PoolFolder()
        self._lock, self._process = threading.RLock(), os.getpid()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other threads out for the block, in which several calls belong together.

        Raises:
            RuntimeError: in a process forked from the one that made the buffer.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                f"this TrajectoryBuffer is of process {self._process}, process {os.getpid()} is "
                f"a fork of it: {_ELSEWHERE}"
            )
        with self._lock:
            yield

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a TrajectoryBuffer cannot be copied or pickled: {_ELSEWHERE}")

    def __len__(self) -> int:
        """Number of trajectories."""
        return self.pool.trajectories

    @property
    def policy_snapshot(self) -> int:
        """The current policy's number, such as the number of updates so far; never decreases.

        A trajectory without a `step` is recorded with this number; ages are counted from it.
        """
        return self._snapshot

    @policy_snapshot.setter
    @_alone
    def policy_snapshot(self, step: int) -> None:
        whole = isinstance(step, (int, np.integer)) and not isinstance(step, bool)
        if not whole or step < self._snapshot:
            allowed = f"must be an integer of at least {self._snapshot}, its last"
            raise ValueError(f"policy_snapshot={step!r}: {allowed}")
        if step > self._snapshot:
            self.pool.end_step(int(step) - 1, {})
            self._snapshot = int(step)

    @_alone
    def add(self, trajectory: Mapping[str, Any]) -> bool:
        """Count a trajectory for difficulty and keep it if correct; returns whether it was kept.

        A success replaces one of the same question with the same tokens, or, without tokens, with
        the same text. A replayed one (`is_replayed`) does not count again if its question is known:
        it says nothing of the current policy.

        Args:
            trajectory: prompt (a text), rollout, reward (0 to 1 if it is correct), is_correct,
                entropy (mean token entropy in nats when it was generated; None if unknown). rollout
                is its text, or a mapping with text, tokens or both, such as a row of
                exgrpo.buffer.policies. Optional, in that mapping or beside it: tokens, int [T];
                with tokens also log_probs, float [T] in nats under the policy that generated them,
                and loss_mask, bool [T], false at tokens of a tool or an environment; step, the
                policy's number; is_replayed. All are copied. Where both have a key, prompt
                included, the rollout's counts. A measure may require further keys.

        Raises:
            ValueError: one line with the key, the value and what is allowed; nothing has changed.
        """
        trajectory = flat(trajectory)
        prompt, is_correct, success = Record.from_mapping(trajectory, self._snapshot)
        if not (trajectory.get("is_replayed") and prompt in self.bucketer):
            self.bucketer.observe(trajectory)
        self.policy_snapshot = max(self._snapshot, success.step)
        max_age = self._config.experience_max_age
        keep = is_correct and (max_age is None or self._snapshot - success.step <= max_age)
        bucket = 1 + self.bucketer.tier(prompt, self._tiers)
        self.pool.file(prompt, bucket, success if keep else None)
        return keep and any(each.key == success.key for each in self.pool.candidates(prompt))

    @_alone
    def clear(self) -> None:
        """Forget trajectories and difficulties; the generator and `policy_snapshot` are kept."""
        self.bucketer.clear()
        self.pool, self._on_disk = ExperiencePool(self._config), PoolFolder()

    @_alone
    def entropy_thresholds(self) -> dict[float, float]:
        """Percentile -> the recorded entropy at it, in nats; NaN if no entropy is known."""
        recorded = recorded_entropies(self.pool)
        return {percentile: threshold(recorded, percentile) for percentile in self._percentiles}

    @_alone
    def eligible(
        self,
        strategy: str = "medium_difficulty_low_entropy",
        difficulty_range: Sequence[float] | AsNamed | None = "as named",
        entropy_percentile: float | AsNamed | None = "as named",
    ) -> int:
        """Number of questions that `sample` can draw with these arguments and without `scores`."""
        chosen = resolve(strategy, difficulty_range, entropy_percentile, self._percentiles)
        return sum(map(len, chosen.drawable(self.pool, self.bucketer).buckets.values()))

    @_alone
    def sample(
        self,
        strategy: str = "medium_difficulty_low_entropy",
        size: int = 8,
        difficulty_range: Sequence[float] | AsNamed | None = "as named",
        entropy_percentile: float | AsNamed | None = "as named",
        scores: Scores | None = None,
    ) -> ReplayBatch:
        """One trajectory each of up to `size` questions, in random order; fewer if there are not.

        The bounds apply first: questions whose level is in the range, ends included, and their
        trajectories whose recorded entropy is at or below the percentile of all recorded ones. Then
        `medium_difficulty` weighs the tiers with a normal density around the middle one, and
        `uniform` draws questions uniformly. `low_entropy`, `high_entropy` or `random` chooses among
        a question's remaining trajectories. Takes one pass over the questions.

        Args:
            strategy: one of `exgrpo.buffer.strategies.STRATEGIES`.
            size: at least 1.
            difficulty_range: (low, high), or None for any. "as named": (0.3, 0.7) for
                medium_difficulty, else None.
            entropy_percentile: one of `entropy_percentiles`, or None for any. "as named": the
                lowest of them (25) for low_entropy, else None.
            scores: scores candidates again under the current policy, as in the paper (section 4.1).
                It is called at most once, with the candidates of all drawn questions that have more
                than one, and returns their entropies [n]. Without it the recorded entropies decide,
                and a trajectory without one is no candidate.

        Raises:
            ValueError: one line with the name, the value and what is allowed.
            NothingLeft: a ValueError: no trajectory is within the bounds.
        """
        chosen = resolve(strategy, difficulty_range, entropy_percentile, self._percentiles)
        _positive("size", size)
        drawable = chosen.drawable(self.pool, self.bucketer, scored=scores is not None)
        if not drawable.buckets:
            bounds = f"strategy={strategy} with difficulty_range={chosen.difficulty_range}, "
            bounds += f"entropy_percentile={chosen.entropy_percentile}"
            raise NothingLeft(f"{bounds}: none of {len(self)} trajectories is left to draw")
        config = replace(self._config, **chosen.settings)
        sampler = WeightedBucketSampler(config.exp_bucket_manager, config.rollout_n)
        candidates = {}
        for prompt in sampler.sample(drawable.buckets, size, self.rng):
            known = self.pool.candidates(prompt)
            candidates[prompt] = [each for each in known if drawable.has(each.entropy)]
        replay = ExperienceReplay(config, (), self.pool, self.rng)
        choice = replay.choose(candidates, scorer_of(scores, self._batch))
        return self._batch(list(choice.trajectories.items()))

    @_alone
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the buffer and its generator; a kill leaves the old state or the new one.

        What the last save or load left on disk is linked, not written again.

        Raises:
            OSError: a full disk, a read-only folder or another writer; the old state is intact.
            ModuleNotFoundError: pyarrow is not installed.
        """
        settings = {
            "max_size": self._config.experience_max_trajectories,
            "difficulty_tiers": self._tiers,
            "entropy_percentiles": self._percentiles,
            "max_per_question": self._config.experience_max_per_question,
            "max_age": self._config.experience_max_age,
        }
        buffer = SavedBuffer(settings, self._snapshot, self.bucketer, self.rng)
        buffer_files.save(Path(folder), self.pool, self._on_disk, buffer)

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], metric: Measure | None = None
    ) -> TrajectoryBuffer:
        """The buffer saved to `folder`, with the same settings and bit-identical next draws.

        Args:
            metric: the function that measured difficulty, if any: functions are not saved.

        Raises:
            FileNotFoundError: there is no saved buffer.
            DamagedPool: the message names the damaged file.
            ValueError: the folder does not have a buffer, or `metric` does not match it.
        """
        place = Path(folder)
        return durable.steadily(place / buffer_files.POOL, lambda: cls._read(place, metric))

    @classmethod
    def _read(cls, folder: Path, metric: Measure | None) -> TrajectoryBuffer:
        saved, pool = buffer_files.read(folder, metric)
        buffer = cls(**saved.settings, bucketer=saved.bucketer, seed=saved.rng)
        buffer.pool = buffer._on_disk.restored(pool, buffer._config)
        buffer._snapshot = saved.step
        return buffer

    def _batch(self, candidates: Sequence[Candidate]) -> ReplayBatch:
        levels = [self.bucketer.level(prompt) for prompt, _ in candidates]
        return ReplayBatch.of(candidates, levels, self._snapshot)


def _positive(name: str, value: Any, optional: bool = False) -> int:
    if optional and value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        refuse(name, repr(value), f"an integer of at least 1{', or None' if optional else ''}")
    return int(value)
