"""Tokens and log-probs of a running pool on a local disk (`trainer.experience_disk`); an entry of each in memory.

The files have no names: they are gone as soon as the process ends, however it ends. A checkpoint is complete without
them, like that of a pool in memory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from exgrpo.experience import packing
from exgrpo.experience.bodies import Bodies, InMemory
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.trajectory import Trajectory

_ENTRY = struct.Struct("=I16s")  # after the header: bytes of the packed trajectory, digest of its key
_FILE_BYTES = 1 << 28
_NOWHERE = -1
_KEY = "trainer.experience_disk"


@dataclass
class _File:
    """A file without a name, to which packed trajectories are appended.

    Attributes:
        serials, offsets: of all trajectories written to it, also of those that are dropped or moved.
        size, live: bytes written, and bytes of the trajectories that are still here.
    """

    file: IO[bytes]
    serials: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    size: int = 0
    live: int = 0


class DiskBodies:
    """Keeps packed trajectories in files of `file_bytes`; one that is more than half empty is moved and closed.

    So the files take at most twice `disk_bytes`, plus one file. 120 bytes of memory are needed for each trajectory.

    Args:
        folder: on a disk of this machine; made if it is missing. OSError if it cannot be written.
        file_bytes: size of a file.
    """

    def __init__(self, folder: Path, file_bytes: int = _FILE_BYTES) -> None:
        self.folder = folder
        self._file_bytes = file_bytes
        self._files: dict[int, _File] = {}
        self._tail = -1  # number of the file that is appended to; numbers are never used again
        self._places = array("q")  # index serial - _first -> file number * file_bytes + offset, or _NOWHERE
        self._first = 0
        self._live = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._new_file()

    @property
    def disk_bytes(self) -> int:
        """Bytes of the trajectories, without what is dropped and not yet given back."""
        return self._live

    @property
    def file_bytes(self) -> int:
        """Bytes of the files."""
        return sum(file.size for file in self._files.values())

    def keep(self, packed: bytes) -> bytes:
        serial = packing.serial(packed)
        if not self._places:
            self._first = serial
        self._places.extend([_NOWHERE] * (serial + 1 - self._first - len(self._places)))
        self._append(serial, packed)
        self._live += len(packed)
        digest = hashlib.blake2b(packing.key(packed), digest_size=16).digest()
        return packed[: packing.HEADER.size] + _ENTRY.pack(len(packed), digest)

    def read(self, entry: bytes) -> bytes:
        size, _ = _ENTRY.unpack_from(entry, packing.HEADER.size)
        return self._read(packing.serial(entry), size)

    def glance(self, entry: bytes) -> Trajectory:
        size, _ = _ENTRY.unpack_from(entry, packing.HEADER.size)
        return packing.unpack_later(entry, size, lambda: self.read(entry))

    def matches(self, entry: bytes, key: bytes) -> bool:
        _, digest = _ENTRY.unpack_from(entry, packing.HEADER.size)
        return bool(digest == hashlib.blake2b(key, digest_size=16).digest())

    def drop(self, entry: bytes) -> None:
        size, _ = _ENTRY.unpack_from(entry, packing.HEADER.size)
        serial = packing.serial(entry)
        number, _ = self._place(serial)
        self._places[serial - self._first] = _NOWHERE
        file = self._files[number]
        file.live -= size
        self._live -= size
        if number != self._tail and 2 * file.live < file.size:
            self._move(number)

    def _place(self, serial: int) -> tuple[int, int]:
        """Number of the file, and the offset in it; offsets are below file_bytes, the last record may end beyond."""
        return divmod(self._places[serial - self._first], self._file_bytes)

    def _read(self, serial: int, size: int) -> bytes:
        number, offset = self._place(serial)
        packed = os.pread(self._files[number].file.fileno(), size, offset)
        if len(packed) != size:
            raise OSError(errno.EIO, f"{_KEY}={self.folder}: {len(packed)} of {size} bytes could be read")
        return packed

    def _append(self, serial: int, packed: bytes) -> None:
        if self._files[self._tail].size >= self._file_bytes:
            self._new_file()
        file = self._files[self._tail]
        offset, remaining = file.size, memoryview(packed)
        while remaining:
            try:
                written = os.pwrite(file.file.fileno(), remaining, file.size + len(packed) - len(remaining))
            except OSError as error:
                free = shutil.disk_usage(self.folder).free
                what = f"{_KEY}={self.folder}: a trajectory of {len(packed)} bytes could not be written"
                raise OSError(error.errno, f"{what} ({error.strerror}, {free} bytes are free)") from error
            remaining = remaining[written:]
        file.serials.append(serial)
        file.offsets.append(offset)
        file.size += len(packed)
        file.live += len(packed)
        self._places[serial - self._first] = self._tail * self._file_bytes + offset

    def _new_file(self) -> None:
        previous = self._tail
        self._tail += 1
        file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115  open as long as it is needed
        self._files[self._tail] = _File(file)
        if previous in self._files and 2 * self._files[previous].live < self._files[previous].size:
            self._move(previous)

    def _move(self, number: int) -> None:
        """Append what is left of a file to the last one, and close it, which frees its space."""
        file = self._files[number]
        ends = [*file.offsets[1:], file.size]
        for serial, offset, end in zip(file.serials, file.offsets, ends, strict=True):
            if self._place(serial) == (number, offset):
                self._append(serial, self._read(serial, end - offset))
        file.file.close()
        del self._files[number]


def bodies_of(config: ExperienceConfig) -> Bodies:
    """Where a run's trajectories are kept, by `trainer.experience_disk`. Errors as `check`."""
    if config.experience_disk is None:
        return InMemory()
    check(config)
    return DiskBodies(Path(config.experience_disk))


def check(config: ExperienceConfig) -> None:
    """Whether the folder for trajectories can be used; it is not made.

    Raises:
        ValueError: it cannot be written, or its disk has less space than the bound.
    """
    if config.experience_disk is None:
        return
    folder = Path(config.experience_disk).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{_KEY}={folder}: {existing} must be a folder that can be written")
    free, bound = shutil.disk_usage(existing).free, config.experience_max_disk_bytes
    if free < bound:
        raise ValueError(
            f"trainer.experience_max_disk_bytes={bound}: {folder} has {free} bytes free; must be at most that"
        )
