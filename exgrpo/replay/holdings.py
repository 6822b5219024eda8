"""The pool, the ledger and the difficulties of a buffer, which change together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.replay.difficulty_bucketer import DifficultyBucketer
from exgrpo.replay.ledger import Ledger, candidates_in
from exgrpo.replay.records import Record, ReplayBatch
from exgrpo.replay.strategies import Range


@dataclass
class Holdings:
    """Everything a buffer holds. Tier 0..tiers-1 is bucket 1..tiers of a pool with K = tiers + 1."""

    pool: ExperiencePool
    ledger: Ledger
    bucketer: DifficultyBucketer
    tiers: int

    def put(self, record: Record, keep: bool) -> bool:
        """File the question under the tier of its window, with the trajectory if `keep`; returns whether it is held."""
        bucket = 1 + self.bucketer.tier(record.prompt, self.tiers)
        kept = (record.trajectory,) if keep else ()
        # `refused` successes count for difficulty alone: with them the group's success count is the bucket.
        self.pool.observe(RolloutGroup(record.prompt, self.tiers + 1, kept, refused=bucket - len(kept)))
        return keep and self.ledger.note(record, self.pool)

    def entropies(self) -> npt.NDArray[np.float64]:
        """The recorded ones that are known, in no particular order."""
        self.ledger.reconcile(self.pool)
        recorded = np.array([entry.entropy for _, entries in self.ledger.items() for entry in entries.values()])
        known: npt.NDArray[np.float64] = recorded[~np.isnan(recorded)]
        return known

    def drawable(self, levels: Range | None, limit: float | None) -> dict[int, list[str]]:
        """Bucket -> its questions whose level is within `levels` and that have a candidate; no bucket is empty."""
        self.ledger.reconcile(self.pool)
        low, high = levels or (0.0, 1.0)
        buckets: dict[int, list[str]] = {}
        for prompt, entries in self.ledger.items():
            within = low <= self.bucketer.level(prompt) <= high
            if within and any(_passes(entry.entropy, limit) for entry in entries.values()):
                buckets.setdefault(1 + self.bucketer.tier(prompt, self.tiers), []).append(prompt)
        return dict(sorted(buckets.items()))

    def candidates(self, prompt: str, limit: float | None) -> list[Trajectory]:
        """The question's trajectories with an entropy of at most `limit`, in the order of recording."""
        return [each for each in candidates_in(self.pool, prompt) if _passes(each.entropy, limit)]

    def batch(self, pairs: Sequence[tuple[str, Trajectory]], now: int) -> ReplayBatch:
        """(question, one of its trajectories) as they are handed out; `now` is the number of the policy of now."""
        entries = [self.ledger.of(prompt, trajectory) for prompt, trajectory in pairs]
        steps = np.array([trajectory.step for _, trajectory in pairs], dtype=np.int64)
        texts = [
            "".join(map(chr, trajectory.tokens)) if entry.text is None else entry.text
            for entry, (_, trajectory) in zip(entries, pairs, strict=True)
        ]
        return ReplayBatch(
            prompts=[prompt for prompt, _ in pairs],
            rollouts=texts,
            rewards=np.array([entry.reward for entry in entries]),
            tokens=[
                None if entry.text is None else trajectory.tokens
                for entry, (_, trajectory) in zip(entries, pairs, strict=True)
            ],
            log_probs=[trajectory.log_probs if trajectory.has_log_probs else None for _, trajectory in pairs],
            entropies=np.array([trajectory.entropy for _, trajectory in pairs]),
            levels=np.array([self.bucketer.level(prompt) for prompt, _ in pairs]),
            steps=steps,
            ages=now - steps,
        )


def _passes(entropy: float, limit: float | None) -> bool:
    return limit is None or entropy <= limit  # an unknown entropy, NaN, is at most nothing
