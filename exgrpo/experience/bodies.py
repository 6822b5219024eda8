"""Where the bytes of a pool's trajectories are: in memory, or elsewhere with only an entry of each in memory."""

from __future__ import annotations

from typing import Protocol

from exgrpo.experience import packing
from exgrpo.experience.trajectory import Trajectory


class Bodies(Protocol):
    """Keeps packed trajectories for a TrajectoryStore, which owns it.

    An entry is what the store holds in memory for a trajectory. It begins with the trajectory's packing.HEADER, so
    that serial, step, length and entropy are read without its body.
    """

    @property
    def disk_bytes(self) -> int:
        """Bytes of the trajectories that are kept on a disk; 0 if they are in memory."""
        ...

    def keep(self, packed: bytes) -> bytes:
        """Keep a trajectory and return its entry. Serials ascend. OSError, in one line, if it cannot be written."""
        ...

    def read(self, entry: bytes) -> bytes:
        """The packed trajectory."""
        ...

    def glance(self, entry: bytes) -> Trajectory:
        """The trajectory, its arrays read when they are first used; valid until the next `keep` or `drop`."""
        ...

    def matches(self, entry: bytes, key: bytes) -> bool:
        """Whether `Trajectory.key` is `key`."""
        ...

    def drop(self, entry: bytes) -> None:
        """Forget a trajectory; its entry is not used again."""
        ...


class InMemory:
    """The entry is the packed trajectory itself."""

    disk_bytes = 0

    def keep(self, packed: bytes) -> bytes:
        return packed

    def read(self, entry: bytes) -> bytes:
        return entry

    def glance(self, entry: bytes) -> Trajectory:
        return packing.unpack(entry)

    def matches(self, entry: bytes, key: bytes) -> bool:
        # startswith first: it copies nothing, and is false of almost all
        return entry.startswith(key, packing.HEADER.size) and packing.key(entry) == key

    def drop(self, entry: bytes) -> None:
        """Nothing to do: the store's reference was the last one."""
