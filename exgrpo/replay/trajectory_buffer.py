"""A replay buffer for any training loop: ExperiencePool, fed one trajectory at a time and drawn from by strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo.experience.choice import Candidate
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.replay import ExperienceReplay
from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler
from exgrpo.replay import buffer_files
from exgrpo.replay.buffer_files import SavedBuffer
from exgrpo.replay.difficulty_bucketer import DifficultyBucketer, Measure
from exgrpo.replay.records import Record, ReplayBatch
from exgrpo.replay.strategies import AsNamed, NothingLeft, Scores, look_by, recorded_entropies, resolve, threshold
from exgrpo.saved.pool_folder import PoolFolder


class TrajectoryBuffer:
    """Successes by question, filed by difficulty, drawn by difficulty and entropy.

    A question's identity is its prompt. Tier t of n, counted from 1, is bucket t of a pool with K = n + 1: partly
    solved, whatever the level, since nobody can tell from single trajectories that a question is solved for good.

    Args:
        max_size: trajectories; the oldest recording goes first.
        difficulty_tiers: equal ranges of 0..1 that the sampler weighs, 1 or more.
        entropy_percentiles: those of the recorded entropies that a sample may ask for, each in 0..100.
        bucketer: measures difficulty; belongs to the buffer from here on. Default: the success rate.
        max_per_question: beyond it the highest recorded entropy goes first, unknown before any.
        max_age: trajectories leave once `policy_snapshot` is further than this beyond their step; None: never.
        seed: of every draw, or a generator (PCG64, which is what numpy's default_rng makes).

    Attributes:
        pool, bucketer: what the buffer holds, to be read; change them through the buffer alone.
        rng: the generator of every draw.

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
        for name, value in (("max_size", max_size), ("max_per_question", max_per_question), ("max_age", max_age)):
            _positive(name, value, optional=name == "max_age")
        self._tiers = _positive("difficulty_tiers", difficulty_tiers)
        self._percentiles = sorted({float(percentile) for percentile in entropy_percentiles})
        for percentile in self._percentiles:
            if not 0 <= percentile <= 100:
                raise ValueError(f"entropy_percentiles holds {percentile}: must be between 0 and 100")
        self._config = ExperienceConfig(
            rollout_n=difficulty_tiers + 1,
            experience_max_per_question=max_per_question,
            experience_max_trajectories=max_size,
            experience_max_age=max_age,
        )
        self.rng = np.random.default_rng(seed)
        if not isinstance(self.rng.bit_generator, np.random.PCG64):
            raise ValueError(f"seed={seed}: must be an integer or a generator over PCG64, whose state can be saved")
        self.bucketer = DifficultyBucketer() if bucketer is None else bucketer
        self._snapshot = 0
        self._begin(ExperiencePool(self._config), PoolFolder())

    def _begin(self, pool: ExperiencePool, on_disk: PoolFolder) -> None:
        self.pool, self._on_disk = pool, on_disk

    def __len__(self) -> int:
        """Trajectories."""
        return self.pool.trajectories

    @property
    def policy_snapshot(self) -> int:
        """The current policy's number, such as the count of updates so far; never goes back.

        A trajectory is recorded under it unless it brings a `step` of its own; ages are counted to it.
        """
        return self._snapshot

    @policy_snapshot.setter
    def policy_snapshot(self, step: int) -> None:
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < self._snapshot:
            raise ValueError(f"policy_snapshot={step!r}: must be an integer of at least {self._snapshot}, its last")
        if step > self._snapshot:
            self.pool.end_step(int(step) - 1, {})
            self._snapshot = int(step)

    def add(self, trajectory: Mapping[str, Any]) -> bool:
        """Count a trajectory for its question's difficulty and, if it is correct, keep it; returns whether it was kept.

        A success replaces one of the same question with the same tokens, or, without tokens, with the same text.

        Args:
            trajectory: prompt and rollout (texts), reward (0 to 1 where it is correct), is_correct, entropy (mean token
                entropy in nats when it was written; None if unknown); optionally tokens, int [T], with or without
                log_probs, float [T] in nats of the policy that wrote them; with tokens optionally loss_mask, bool [T],
                false at what a tool or an environment wrote; optionally step, the policy's number. A measure may want
                further keys.

        Raises:
            ValueError: one line with the key, the value and what is allowed; nothing has changed.
        """
        prompt, is_correct, success = Record.from_mapping(trajectory, self._snapshot)
        self.bucketer.observe(trajectory)
        self.policy_snapshot = max(self._snapshot, success.step)
        max_age = self._config.experience_max_age
        keep = is_correct and (max_age is None or self._snapshot - success.step <= max_age)
        self.pool.file(prompt, 1 + self.bucketer.tier(prompt, self._tiers), success if keep else None)
        return keep and any(held.key == success.key for held in self.pool.candidates(prompt))

    def clear(self) -> None:
        """Forget trajectories and difficulties; the generator and `policy_snapshot` go on."""
        self.bucketer.clear()
        self._begin(ExperiencePool(self._config), PoolFolder())

    def entropy_thresholds(self) -> dict[float, float]:
        """Percentile -> the recorded entropy in nats that it stands at, NaN while none is known."""
        recorded = recorded_entropies(self.pool)
        return {percentile: threshold(recorded, percentile) for percentile in self._percentiles}

    def eligible(
        self,
        strategy: str = "medium_difficulty_low_entropy",
        difficulty_range: Sequence[float] | AsNamed | None = "as named",
        entropy_percentile: float | AsNamed | None = "as named",
    ) -> int:
        """Questions that `sample` can draw from with these arguments and no `scores`."""
        chosen = resolve(strategy, difficulty_range, entropy_percentile, self._percentiles)
        return sum(map(len, chosen.drawable(self.pool, self.bucketer).buckets.values()))

    def sample(
        self,
        strategy: str = "medium_difficulty_low_entropy",
        size: int = 8,
        difficulty_range: Sequence[float] | AsNamed | None = "as named",
        entropy_percentile: float | AsNamed | None = "as named",
        scores: Scores | None = None,
    ) -> ReplayBatch:
        """One trajectory each of up to `size` distinct questions, in random order; fewer if there are not enough.

        The bounds come first: questions whose level is in the range, ends included; of these, trajectories whose
        recorded entropy is at or below the percentile of all recorded ones. Then `medium_difficulty` weighs the tiers
        by a normal density around the middle one, `uniform` draws over questions; and `low_entropy`, `high_entropy`
        or `random` chooses among what is left of each question. Costs a pass over the questions.

        Args:
            strategy: one of `exgrpo.replay.strategies.STRATEGIES`.
            size: 1 or more.
            difficulty_range: (low, high), or None for any. As named: (0.3, 0.7) of medium_difficulty, else None.
            entropy_percentile: one of `entropy_percentiles`, or None for any. As named: the lowest of them (25)
                of low_entropy, else None.
            scores: re-scores candidates under the current policy, as the paper does (section 3.2): called once at most,
                with those of all drawn questions that have more than one; returns their entropies [n]. Without it the
                recorded ones decide, and a trajectory whose entropy is unknown is no candidate.

        Raises:
            ValueError: one line with the name, the value and what is allowed.
            NothingLeft: a ValueError too: nothing is within the bounds.
        """
        chosen = resolve(strategy, difficulty_range, entropy_percentile, self._percentiles)
        _positive("size", size)
        left = chosen.drawable(self.pool, self.bucketer, scored=scores is not None)
        if not left.buckets:
            bounds = f"difficulty_range={chosen.difficulty_range}, entropy_percentile={chosen.entropy_percentile}"
            raise NothingLeft(f"strategy={strategy} with {bounds}: none of {len(self)} trajectories is left to draw")
        config = chosen.config(self._config)
        sampler = WeightedBucketSampler(config.exp_bucket_manager, config.rollout_n)
        candidates = {
            prompt: [each for each in self.pool.candidates(prompt) if left.has(each.entropy)]
            for prompt in sampler.sample(left.buckets, size, self.rng)
        }
        replay = ExperienceReplay(config, (), self.pool, self.rng)
        choice = replay.choose(candidates, look_by(scores, self._batch))
        return self._batch(list(choice.trajectories.items()))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the buffer, generator included, to `folder`: a kill at any moment leaves the old state or the new one.

        Needs pyarrow. What the last save or load has written of tokens and log-probs is linked, not written again.

        Raises:
            OSError: the disk is full, the folder read-only, another process is writing; what was there is intact.
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
    def load(cls, folder: str | os.PathLike[str], metric: Measure | None = None) -> TrajectoryBuffer:
        """The buffer that was saved to `folder`: the same settings, and the same next draws to the last bit.

        Args:
            metric: the function that measured difficulty, if one did: functions are not saved.

        Raises:
            FileNotFoundError: there is none.
            DamagedPool: naming the file.
            ValueError: what is there is not a buffer's, or `metric` does not fit it.
        """
        saved = buffer_files.read(Path(folder), metric)
        buffer = cls(**saved.settings, bucketer=saved.bucketer, seed=saved.rng)
        on_disk = PoolFolder()
        buffer._begin(buffer_files.read_pool(Path(folder), on_disk, buffer._config), on_disk)
        buffer._snapshot = saved.step
        return buffer

    def _batch(self, candidates: Sequence[Candidate]) -> ReplayBatch:
        levels = [self.bucketer.level(prompt) for prompt, _ in candidates]
        return ReplayBatch.of(candidates, levels, self._snapshot)


def _positive(name: str, value: Any, optional: bool = False) -> int:
    if optional and value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}={value!r}: must be an integer of at least 1{', or None' if optional else ''}")
    return int(value)
