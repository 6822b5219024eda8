"""The metrics of a pool (docs/metrics.md lists them)."""

from __future__ import annotations

import dataclasses

from exgrpo.experience.experience_bucket_manager import ExperienceBucketManager
from exgrpo.experience.trajectory_store import TrajectoryStore


def contents(store: TrajectoryStore, buckets: ExperienceBucketManager, eligible: int) -> dict[str, float]:
    """What a pool holds and what went through it, always with the same keys; counters are cumulative.

    Args:
        eligible: number of questions that may be drawn.
    """
    counters = dataclasses.asdict(store.counters)
    measured = {
        "pool_questions": len(buckets),
        "pool_trajectories": len(store),
        "pool_tokens": store.tokens,
        "pool_bytes": store.memory_bytes,
        "eligible_questions": eligible,
        "undrawable_questions": len(buckets) - eligible,
        "retired_questions": buckets.retired_count,
        "retired_trajectories": counters.pop("retired"),
        "evicted": store.counters.evicted,
        **counters,
        **{f"bucket_{bucket}": size for bucket, size in enumerate(buckets.sizes())},
    }
    return {name: float(value) for name, value in measured.items()}


def ages(store: TrajectoryStore, step: int) -> dict[str, float]:
    """Ages of the trajectories in steps, at `step`."""
    return {"age_median": store.age_quantile(0.5, step), "age_p95": store.age_quantile(0.95, step)}
