"""Everything a pool holds, in the form in which it is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exgrpo.experience.experience_bucket_manager import BucketState
from exgrpo.experience.replay_log import ReplayLog
from exgrpo.experience.trajectory import Trajectory


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
        records: (first, last) -> (serial, question, trajectory) for that range of serials, both ends included.
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
