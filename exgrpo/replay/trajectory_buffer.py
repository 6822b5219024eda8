"""A replay buffer for any training loop: ExperiencePool, fed one trajectory at a time and drawn from by strategy."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import Trajectory
from exgrpo.replay import buffer_files, drawing
from exgrpo.replay.difficulty_bucketer import DifficultyBucketer, Measure
from exgrpo.replay.holdings import Holdings
from exgrpo.replay.ledger import Ledger, trajectories_in
from exgrpo.replay.records import Record, ReplayBatch
from exgrpo.replay.strategies import AsNamed, Strategy, resolve

Scores = Callable[[ReplayBatch], npt.ArrayLike]


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
        self._snapshot = 0
        if bucketer is None:
            bucketer = DifficultyBucketer()
        self._held = Holdings(ExperiencePool(self._config), Ledger(), bucketer, self._tiers)

    def __len__(self) -> int:
        """Trajectories."""
        return trajectories_in(self._held.pool)

    @property
    def policy_snapshot(self) -> int:
        """The number of the policy that writes now, such as the count of updates so far; never goes back.

        A trajectory is recorded under it unless it brings a `step` of its own; ages are counted to it.
        """
        return self._snapshot

    @policy_snapshot.setter
    def policy_snapshot(self, step: int) -> None:
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < self._snapshot:
            raise ValueError(f"policy_snapshot={step!r}: must be an integer of at least {self._snapshot}, its last")
        if step > self._snapshot:
            self._held.pool.end_step(int(step) - 1, {})
            self._snapshot = int(step)

    def add(self, trajectory: Mapping[str, Any]) -> bool:
        """Count a trajectory for its question's difficulty and, if it is correct, keep it; returns whether it was kept.

        A success with the same tokens as a kept one takes its place.

        Args:
            trajectory: prompt and rollout (texts), reward, is_correct, entropy (mean token entropy in nats when it was
                written; None if unknown); optionally tokens, int [T], with or without log_probs, float [T] in nats of
                the policy that wrote them; optionally step, the policy's number. A measure may want further keys.

        Raises:
            ValueError: one line with the key, the value and what is allowed; nothing has changed.
        """
        record = Record.from_mapping(trajectory, self._snapshot)
        self._held.bucketer.observe(trajectory)
        self.policy_snapshot = max(self._snapshot, record.trajectory.step)
        return self._held.put(record, keep=record.is_correct and self._young(record.trajectory))

    def clear(self) -> None:
        """Forget trajectories and difficulties; the generator and `policy_snapshot` go on."""
        self._held.bucketer.clear()
        self._held = Holdings(ExperiencePool(self._config), Ledger(), self._held.bucketer, self._tiers)

    def entropy_thresholds(self) -> dict[float, float]:
        """Percentile -> the recorded entropy in nats that it stands at, NaN while none is known."""
        recorded = self._held.entropies()
        return {p: float(np.percentile(recorded, p)) if recorded.size else math.nan for p in self._percentiles}

    def eligible(
        self,
        strategy: str = "medium_difficulty_low_entropy",
        difficulty_range: Sequence[float] | AsNamed | None = "as named",
        entropy_percentile: float | AsNamed | None = "as named",
    ) -> int:
        """Questions that `sample` can draw from with these arguments and no `scores`."""
        chosen = resolve(strategy, difficulty_range, entropy_percentile, self._percentiles)
        limit = self._limit(chosen, chosen.selector.needs_scores)
        return sum(map(len, self._held.drawable(chosen.difficulty_range, limit).values()))

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
            scores: re-scores candidates under the policy of now, as the paper does (section 3.2): called once at most,
                with those of all drawn questions that have more than one; returns their entropies [n]. Without it the
                recorded ones decide, and a trajectory whose entropy is unknown is no candidate.

        Raises:
            ValueError: one line with the name, the value and what is allowed; or nothing is left to draw.
        """
        chosen = resolve(strategy, difficulty_range, entropy_percentile, self._percentiles)
        _positive("size", size)
        limit = self._limit(chosen, chosen.selector.needs_scores and scores is None)
        buckets = self._held.drawable(chosen.difficulty_range, limit)
        if not buckets:
            bounds = f"difficulty_range={chosen.difficulty_range}, entropy_percentile={chosen.entropy_percentile}"
            raise ValueError(f"strategy={strategy} with {bounds}: none of {len(self)} trajectories is left to draw")
        drawn = chosen.sampler(self._tiers).sample(buckets, size, self.rng)
        candidates = [[(prompt, each) for each in self._held.candidates(prompt, limit)] for prompt in drawn]
        return self._batch(drawing.choose(candidates, chosen.selector, self._score(scores), self.rng))

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
        buffer_files.save(Path(folder), self._held, settings, self._snapshot, self.rng)

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
        pool = ExperiencePool.load(saved.pool_folder, buffer._config, saved.step, buffer_files.IDENTITY)
        buffer._held = Holdings(pool, saved.ledger, saved.bucketer, buffer._tiers)
        buffer._snapshot = saved.step
        return buffer

    def _young(self, trajectory: Trajectory) -> bool:
        oldest = self._config.experience_max_age
        return oldest is None or self._snapshot - trajectory.step <= oldest

    def _limit(self, chosen: Strategy, known: bool) -> float | None:
        """What a candidate's recorded entropy must not exceed; None: anything will do, unknown ones included."""
        if chosen.entropy_percentile is not None:
            return self.entropy_thresholds()[chosen.entropy_percentile]
        return np.inf if known else None

    def _score(self, scores: Scores | None) -> drawing.Score:
        if scores is None:
            return lambda pairs: np.array([trajectory.entropy for _, trajectory in pairs])
        return lambda pairs: scores(self._batch(pairs))

    def _batch(self, pairs: Sequence[tuple[str, Trajectory]]) -> ReplayBatch:
        return self._held.batch(pairs, self._snapshot)


def _positive(name: str, value: Any, optional: bool = False) -> int:
    if optional and value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}={value!r}: must be an integer of at least 1{', or None' if optional else ''}")
    return int(value)
