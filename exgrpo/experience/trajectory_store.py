"""The trajectories of all questions, packed, in the order of recording, under four bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, KeysView
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from exgrpo.experience import packing
from exgrpo.experience.packing import pack, unpack
from exgrpo.experience.rules import Eviction, Same, same_tokens
from exgrpo.experience.trajectory import Trajectory

# Python's overhead per entry, including its share of the question's entries, as measured by
# lab/benchmarks/pool.py. With it the bound in bytes means memory: 8 bytes per token and 200 per
# trajectory.
_OVERHEAD = 200 - packing.HEADER.size


@dataclass
class StoreCounters:
    """Numbers of trajectories since the start of training.

    Attributes:
        stored: added; one that replaced a duplicate counts in `duplicates` only.
        duplicates: the same success recorded again; the newer record replaced the older one.
        evicted_by_question, evicted_by_size, evicted_by_age: dropped by the bound per question, by
            the bounds on the whole pool (trajectories, memory), by the bound on age.
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


class TrajectoryStore:
    """Keeps trajectories by question; the pool decides which questions are kept.

    Each recording gets the next serial number, so serial order is the order of last recording,
    overall and within a question.

    Args:
        max_per_question, max_trajectories: bounds in trajectories.
        max_bytes: bound on `memory_bytes`. All three bounds hold after `trim` and `shrink`.
        eviction: rank of a trajectory; above the bound per question the highest rank is dropped
            first, the oldest among equals.
        same: key of a trajectory; those of a question with equal keys, or tokens, are one success.
    """

    def __init__(
        self,
        max_per_question: int,
        max_trajectories: int,
        max_bytes: int,
        eviction: Eviction,
        same: Same = same_tokens,
    ) -> None:
        self._max_per_question = max_per_question
        self._max_trajectories = max_trajectories
        self._max_bytes = max_bytes
        self._eviction, self._same = eviction, same
        self._held: dict[str, list[bytes]] = {}  # question -> packed, in serial order; never empty
        self._order = RecordingOrder()
        self._count = 0
        self._tokens = 0
        self._bytes = 0  # of the packed trajectories
        self._steps: Counter[int] = Counter()  # step -> trajectories of that step
        self.counters = StoreCounters()

    def __len__(self) -> int:
        return self._count

    def questions(self) -> KeysView[str]:
        return self._held.keys()

    @property
    def next_serial(self) -> int:
        return self._order.next_serial

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def memory_bytes(self) -> int:
        """Memory: 8 bytes per token and 200 per trajectory, plus masks and notes."""
        return self._bytes + self._count * _OVERHEAD

    def serials(self) -> npt.NDArray[np.int64]:
        """Serial numbers of the stored trajectories, ascending."""
        return self._order.serials()

    def records(self, first: int, last: int) -> Iterator[tuple[int, str, Trajectory]]:
        """(serial, question, trajectory) with first <= serial <= last, ascending."""
        for serial, question in self._order.between(first, last):
            entry = next(entry for entry in self._held[question] if packing.serial(entry) == serial)
            yield serial, question, unpack(entry)

    def age_quantile(self, share: float, step: int) -> float:
        """The age at `step` that `share` of the trajectories do not exceed; 0 if there are none."""
        remaining = share * self._count
        for generated in sorted(self._steps, reverse=True):
            remaining -= self._steps[generated]
            if remaining <= 0:
                return float(step - generated) if self._count else 0.0
        return 0.0

    def candidates(self, question: str) -> tuple[Trajectory, ...]:
        """The question's trajectories in the order of recording. KeyError if it has none."""
        return tuple(unpack(entry) for entry in self._held[question])

    def entropies(self, question: str) -> list[float]:
        """Recorded entropies of the candidates, without unpacking. KeyError if it has none."""
        return [packing.entropy(entry) for entry in self._held[question]]

    def record(self, question: str, trajectory: Trajectory) -> None:
        """Store a trajectory as the question's newest; it replaces the same success."""
        duplicates = self._find(question, trajectory)
        if not duplicates:
            self.counters.stored += 1
        else:
            self.counters.duplicates += 1
        # Append before dropping the duplicates, so that the question always has a trajectory.
        self._append(question, pack(self.next_serial, trajectory))
        for duplicate in duplicates:
            self._drop(question, duplicate)

    def trim(self, question: str) -> None:
        """Enforce the bound per question, by the eviction rule."""
        held = self._held[question]
        surplus = len(held) - self._max_per_question
        if surplus <= 0:
            return
        ranked = [(self._eviction(unpack(entry)), entry) for entry in held]
        ranked.sort(key=itemgetter(0), reverse=True)  # stable: the oldest first among equals
        for _, entry in ranked[:surplus]:
            self._drop(question, entry)
            self.counters.evicted_by_question += 1

    def shrink(self) -> list[str]:
        """Enforce the bounds on the whole store, oldest first; the questions left without any."""
        emptied = []
        while self._count > self._max_trajectories or self.memory_bytes > self._max_bytes:
            emptied += self._drop_oldest()
            self.counters.evicted_by_size += 1
        return emptied

    def expire(self, before: int) -> list[str]:
        """Drop trajectories that were generated before a step; returns as `shrink`."""
        emptied, count = [], self._count
        while self._count and packing.step(self._oldest_record()[1]) < before:
            emptied += self._drop_oldest()
        # A trainer's steps ascend, so that none is left here; other loops may record an older one
        # after a newer one.
        if min(self._steps, default=before) < before:
            emptied += self._drop_where(lambda entry: packing.step(entry) < before)
        self.counters.evicted_by_age += count - self._count
        return emptied

    def drop_longer(self, longest: int) -> list[str]:
        """Drop trajectories of more than `longest` tokens; returns as `shrink`."""
        return self._drop_where(lambda entry: packing.length(entry) > longest)

    def discard(self, question: str) -> int:
        """Drop all trajectories of a question. Returns how many there were, which may be 0."""
        held = tuple(self._held.get(question, ()))
        for entry in held:
            self._drop(question, entry)
        return len(held)

    def restore(
        self, records: Iterable[tuple[int, str, bytes]], next_serial: int, counters: StoreCounters
    ) -> None:
        """Fill an empty store from records in ascending order; bounds are not applied."""
        self.counters = counters
        for serial, question, packed in records:
            self._order.skip_to(serial)
            self._append(question, packed)
        self._order.skip_to(next_serial)

    def _find(self, question: str, trajectory: Trajectory) -> list[bytes]:
        """The entries that are the same success."""
        found, key = [], trajectory.key
        own = None if self._same is same_tokens else self._same(trajectory)
        for entry in self._held.get(question, ()):
            # startswith first: it copies nothing, and is false of almost all
            same = entry.startswith(key, packing.HEADER.size) and packing.key(entry) == key
            if same or (own is not None and self._same(unpack(entry)) == own):
                found.append(entry)
        return found

    def _append(self, question: str, entry: bytes) -> None:
        self._held.setdefault(question, []).append(entry)
        self._order.append(question)
        self._count += 1
        self._tokens += packing.length(entry)
        self._bytes += len(entry)
        self._steps[packing.step(entry)] += 1

    def _drop(self, question: str, entry: bytes) -> None:
        held = self._held[question]
        held.remove(entry)  # no two are equal: the serial is in the header
        if not held:
            del self._held[question]
        self._order.drop(packing.serial(entry))
        self._count -= 1
        self._tokens -= packing.length(entry)
        self._bytes -= len(entry)
        step = packing.step(entry)
        self._steps[step] -= 1
        if not self._steps[step]:
            del self._steps[step]

    def _drop_where(self, unwanted: Callable[[bytes], bool]) -> list[str]:
        emptied = []
        for question, held in list(self._held.items()):
            for entry in list(filter(unwanted, held)):
                self._drop(question, entry)
            if question not in self._held:
                emptied.append(question)
        return emptied

    def _oldest_record(self) -> tuple[str, bytes]:
        question = self._order.oldest()
        return question, self._held[question][0]  # the oldest overall is the oldest of its question

    def _drop_oldest(self) -> list[str]:
        """Returns the question if it is left without trajectories."""
        question, entry = self._oldest_record()
        self._drop(question, entry)
        return [] if question in self._held else [question]


class RecordingOrder:
    """Ascending serial numbers, one for each stored trajectory; they may be dropped in any order.

    A list takes 8 bytes a trajectory; a dict by serial number would take about 100.
    """

    def __init__(self) -> None:
        self._owner: list[str | None] = []  # index serial - _base; None once it is dropped
        self._base = 0
        self._oldest = 0  # no serial below this one is left

    @property
    def next_serial(self) -> int:
        return self._base + len(self._owner)

    def append(self, question: str) -> None:
        """Give the next serial number to a question."""
        self._owner.append(question)

    def skip_to(self, serial: int) -> None:
        """Leave out the numbers before `serial`, which is not below `next_serial`."""
        if not self._owner:
            self._base = self._oldest = serial
        self._owner.extend([None] * (serial - self.next_serial))

    def drop(self, serial: int) -> None:
        self._owner[serial - self._base] = None

    def oldest(self) -> str:
        """The question of the lowest serial that is left. IndexError if none is."""
        while (question := self._owner[self._oldest - self._base]) is None:
            self._oldest += 1
        return question

    def between(self, first: int, last: int) -> list[tuple[int, str]]:
        """(serial, question) of those left with first <= serial <= last, ascending."""
        start = max(first, self._base)
        numbers = range(start, min(last + 1, self.next_serial))
        owners = self._owner[start - self._base : max(start, last + 1) - self._base]
        pairs = zip(numbers, owners, strict=True)
        return [(serial, owner) for serial, owner in pairs if owner is not None]

    def serials(self) -> npt.NDArray[np.int64]:
        """Those left, ascending."""
        numbered = enumerate(self._owner, self._base)
        left = [serial for serial, question in numbered if question is not None]
        return np.array(left, dtype=np.int64)
