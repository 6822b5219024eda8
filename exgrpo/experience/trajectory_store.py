"""The trajectories of all questions, packed, in the order of their last recording, under two bounds."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, KeysView

import numpy as np

from exgrpo.experience.trajectory import Trajectory

_HEADER = struct.Struct("=qd")  # step, entropy
_BYTES_PER_TOKEN = 8


def pack(trajectory: Trajectory) -> bytes:
    """Header, tokens, log-probs: one object instead of a dozen, 16 bytes and 8 a token."""
    header = _HEADER.pack(trajectory.step, trajectory.entropy)
    return b"".join((header, trajectory.tokens.tobytes(), trajectory.log_probs.tobytes()))


def unpack(packed: bytes) -> Trajectory:
    """A trajectory whose arrays are read-only views of `packed`, which they keep alive."""
    step, entropy = _HEADER.unpack_from(packed)
    length = _length(packed)
    tokens_T = np.frombuffer(packed, dtype=np.int32, count=length, offset=_HEADER.size)
    log_probs_T = np.frombuffer(packed, dtype=np.float32, count=length, offset=_HEADER.size + tokens_T.nbytes)
    return Trajectory.view(tokens_T, log_probs_T, step, entropy)


def _length(packed: bytes) -> int:
    return (len(packed) - _HEADER.size) // _BYTES_PER_TOKEN


class TrajectoryStore:
    """Keeps packed trajectories by question; whether a question should be kept is somebody else's business.

    Each recording gets the next serial number, so serial order is the order of last recording, here and in a question.

    Args:
        max_per_question, max_trajectories: bounds in trajectories; they hold once `trim` and `shrink` were called.
    """

    def __init__(self, max_per_question: int, max_trajectories: int) -> None:
        self._max_per_question = max_per_question
        self._max_trajectories = max_trajectories
        # serial -> question, packed; plain tuples of str and bytes are no work for the garbage collector
        self._records: dict[int, tuple[str, bytes]] = {}
        self._serials: dict[str, list[int]] = {}  # ascending, never empty
        self._next = 0
        self._oldest = 0  # no serial below this one is in use
        self._payload = 0
        self.stored = 0  # cumulative, in trajectories; a replaced duplicate counts as `duplicates` only
        self.evicted = 0
        self.duplicates = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """(question, packed trajectory) in the order of last recording."""
        return iter(self._records.values())

    def questions(self) -> KeysView[str]:
        return self._serials.keys()

    @property
    def payload_bytes(self) -> int:
        """Bytes of all packed trajectories, without what Python adds for each object."""
        return self._payload

    @property
    def tokens(self) -> int:
        return (self._payload - _HEADER.size * len(self._records)) // _BYTES_PER_TOKEN

    def candidates(self, question: str) -> tuple[Trajectory, ...]:
        """The question's trajectories in the order of recording, as views. KeyError if it has none."""
        return tuple(unpack(self._records[serial][1]) for serial in self._serials[question])

    def record(self, question: str, trajectory: Trajectory) -> None:
        """Store a trajectory as the question's newest; it takes the place of one with the same tokens."""
        duplicate = self._find(question, trajectory.key)
        if duplicate is None:
            self.stored += 1
        else:
            self.duplicates += 1
        # Append before dropping the duplicate: a question never passes through having no trajectory.
        self._append(question, pack(trajectory))
        if duplicate is not None:
            self._drop(duplicate)

    def trim(self, question: str) -> None:
        """Hold the bound per question: highest recorded entropy goes first, NaN before any; of equals the oldest."""
        while len(self._serials[question]) > self._max_per_question:
            self._drop(max(self._serials[question], key=self._entropy))  # max returns the first, and that is the oldest
            self.evicted += 1

    def shrink(self) -> list[str]:
        """Hold the overall bound: the oldest recording goes first. Returns the questions that are left with none."""
        emptied = []
        while len(self._records) > self._max_trajectories:
            while self._oldest not in self._records:
                self._oldest += 1
            question = self._drop(self._oldest)
            self.evicted += 1
            if question not in self._serials:
                emptied.append(question)
        return emptied

    def discard(self, question: str) -> None:
        """Drop all that is stored of a question, which may be nothing."""
        for serial in tuple(self._serials.get(question, ())):
            self._drop(serial)

    def restore(self, records: Iterable[tuple[str, bytes]], *, stored: int, evicted: int, duplicates: int) -> list[str]:
        """Fill an empty store in the order of recording, then hold its bounds. Returns the questions left with none."""
        self.stored, self.evicted, self.duplicates = stored, evicted, duplicates
        for question, packed in records:
            self._append(question, packed)
        for question in tuple(self._serials):
            self.trim(question)
        return self.shrink()

    def check_invariants(self) -> None:
        """Raises ValueError unless records, serials, counters and bounds agree."""
        listed = {serial: question for question, serials in self._serials.items() for serial in serials}
        if listed != {serial: question for serial, (question, _) in self._records.items()}:
            raise ValueError(f"{len(listed)} serials are listed for {len(self._records)} records: must be the same")
        if any(not serials or serials != sorted(serials) for serials in self._serials.values()):
            raise ValueError("serials of a question are empty or out of order")
        if list(self._records) != sorted(self._records) or min(self._records, default=self._oldest) < self._oldest:
            raise ValueError("records are not in the order of recording")
        if self._payload != sum(len(packed) for _, packed in self._records.values()):
            raise ValueError(f"payload_bytes={self._payload}: must be the sum over records")
        largest = max(map(len, self._serials.values()), default=0)
        if len(self._records) > self._max_trajectories or largest > self._max_per_question:
            raise ValueError(f"{len(self._records)} records, {largest} of one question: must be within the bounds")

    def _entropy(self, serial: int) -> float:
        entropy: float = _HEADER.unpack_from(self._records[serial][1])[1]
        return math.inf if math.isnan(entropy) else entropy

    def _find(self, question: str, key: bytes) -> int | None:
        size = _HEADER.size + 2 * len(key)
        for serial in self._serials.get(question, ()):
            packed = self._records[serial][1]
            if len(packed) == size and packed.startswith(key, _HEADER.size):
                return serial
        return None

    def _append(self, question: str, packed: bytes) -> None:
        self._records[self._next] = (question, packed)
        self._serials.setdefault(question, []).append(self._next)
        self._next += 1
        self._payload += len(packed)

    def _drop(self, serial: int) -> str:
        question, packed = self._records.pop(serial)
        self._payload -= len(packed)
        self._serials[question].remove(serial)
        if not self._serials[question]:
            del self._serials[question]
        return question
