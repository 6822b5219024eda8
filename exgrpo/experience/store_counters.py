"""What a pool's trajectories went through since the start of training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StoreCounters:
    """Numbers of trajectories since the start of training.

    Attributes:
        stored: added; one that replaced a duplicate counts in `duplicates` only.
        duplicates: recorded again with the same tokens; the newer record replaced the older one.
        evicted_by_question, evicted_by_size, evicted_by_age: dropped by the bound per question, by the bounds on the
            whole pool (trajectories, memory), by the bound on age.
        retired: dropped because their question was retired.
    """

    stored: int = 0
    duplicates: int = 0
    evicted_by_question: int = 0
    evicted_by_size: int = 0
    evicted_by_age: int = 0
    retired: int = 0

    @property
    def evicted(self) -> int:
        return self.evicted_by_question + self.evicted_by_size + self.evicted_by_age
