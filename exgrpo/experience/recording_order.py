"""The order of recording: which question each serial number belongs to, and which of them are left."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class RecordingOrder:
    """Deals out serial numbers, ascending, and forgets them in any order; 8 bytes of memory per serial number.

    A dict by serial would need 100.
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
        return [(serial, owner) for serial, owner in zip(numbers, owners, strict=True) if owner is not None]

    def serials(self) -> npt.NDArray[np.int64]:
        """Those left, ascending."""
        left = [serial for serial, question in enumerate(self._owner, self._base) if question is not None]
        return np.array(left, dtype=np.int64)

    def check_invariants(self, held: dict[int, str]) -> None:
        """Raises ValueError unless serial -> question of what is held is what is left here."""
        left = {serial: question for serial, question in enumerate(self._owner, self._base) if question is not None}
        if held != left:
            raise ValueError(f"{len(left)} serials in the queue for {len(held)} records: must be the same")
        if min(held, default=self._oldest) < self._oldest:
            raise ValueError(f"serial {min(held)} is held: must be at least {self._oldest}")
