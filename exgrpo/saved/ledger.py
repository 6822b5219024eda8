"""The rollout groups that were finished since the last checkpoint: a file that is only appended to.

Each record is on disk before the next group is looked at, with its length and a checksum. The first
one says to which checkpoint and settings the others belong. A save makes them all obsolete: the
file is deleted, and begins anew.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from exgrpo.saved import durable

# bytes of JSON and of data, then a BLAKE2b of these numbers, the JSON and the data, which follow
_SIZES, _CHECKSUM = struct.Struct("<QQ"), 16
logger = logging.getLogger(__name__)


class Finished(NamedTuple):
    """A group to keep.

    Attributes:
        position: of its prompt among those of the step.
        prompt: digest of what was asked.
        data: its rows.
    """

    position: int
    prompt: str
    data: bytes


class Ledger:
    """The finished groups of the steps after a checkpoint; for one writer.

    An error of the disk ends no training: nothing more is kept until the next save, says a line.

    Args:
        path: of the file, in a folder that is there.
        limit: bytes that it may have.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._header: Mapping[str, str] = {}
        # (step, position) -> digest of the prompt, and where the record begins
        self._places: dict[tuple[int, int], tuple[str, int]] = {}
        self._size = 0
        self._full = False

    def open(self, header: Mapping[str, str]) -> int:
        """Read what an interrupted run has left; returns how many groups can be taken.

        Dropped in a line are a damaged record with all that follow it, and records of another
        header.
        """
        self.begin(header, delete=False)
        if not self._path.is_file():
            return 0
        with self._path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            while record := _read(file, total):
                about = record[0]
                if self._size == 0 and about != self._header:
                    names = [name for name in header if about.get(name) != header[name]]
                    other = f"of other {' and '.join(names)}"
                    logger.warning("%s: finished groups %s are dropped", self._path, other)
                    self.begin(header)
                    return 0
                self._note(about, self._size)
                self._size = file.tell()
        if total > self._size:
            at = f"damaged or cut off at byte {self._size} of {total}"
            kept = f"{len(self._places)} finished groups before it are whole"
            logger.warning("%s: %s, the rest is dropped; %s", self._path, at, kept)
            os.truncate(self._path, self._size)
        return len(self._places)

    def take(self, step: int, position: int, prompt: str) -> bytes | None:
        """The rows of the group that was finished for this prompt in this place, if any."""
        digest, offset = self._places.get((step, position), ("", 0))
        if digest != prompt:
            return None
        with self._path.open("rb") as file:
            file.seek(offset)
            record = _read(file, self._size)
        return record[1] if record else None

    def generated(self, step: int) -> int:
        """A group of the step is generated: the groups of later steps are of other weights, and
        dropped; returns how many they were.
        """
        before = len(self._places)
        self._drop_after(step)
        if dropped := before - len(self._places):
            self._append(_packed({"step": step}))
        return dropped

    def keep(self, step: int, groups: Sequence[Finished]) -> None:
        """Append groups of a step; they are on disk when it returns."""
        records, noted, end = [], [], self._size
        if end == 0:
            records.append(_packed(self._header))
            end = len(records[0])
        for each in groups:
            about = {"step": step, "position": each.position, "prompt": each.prompt}
            records.append(_packed(about, each.data))
            noted.append((about, end))
            end += len(records[-1])
        if self._append(b"".join(records)):
            for about, offset in noted:
                self._note(about, offset)

    def begin(self, header: Mapping[str, str], delete: bool = True) -> None:
        """Forget all groups: there is a checkpoint of what came of them."""
        self._header, self._size, self._full = dict(header), 0, False
        self._places.clear()
        if delete:
            self._path.unlink(missing_ok=True)

    def _note(self, about: Mapping[str, Any], offset: int) -> None:
        if "step" not in about:
            return  # the header
        self._drop_after(about["step"])  # it was generated after those of later steps
        if "position" in about:
            self._places[about["step"], about["position"]] = about["prompt"], offset

    def _drop_after(self, step: int) -> None:
        for place in [place for place in self._places if place[0] > step]:
            del self._places[place]

    def _append(self, records: bytes) -> bool:
        """Whether they are on disk."""
        if self._full:
            return False
        try:
            if self._size + len(records) > self._limit:
                raise OSError(errno.EFBIG, f"it may have {self._limit} bytes")
            with self._path.open("ab") as file:
                file.write(records)
                file.flush()
                os.fsync(file.fileno())
            if self._size == 0:
                durable.sync(self._path.parent)
        except OSError as error:
            self._full = True
            why = error.strerror or error
            logger.warning("%s: no more groups are kept until the next save: %s", self._path, why)
            with contextlib.suppress(OSError):  # what is left of a record is dropped by `open` too
                os.truncate(self._path, self._size)
            return False
        self._size += len(records)
        return True


def _packed(about: Mapping[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(about, sort_keys=True).encode()
    sizes = _SIZES.pack(len(text), len(data))
    return sizes + _checksum(sizes, text, data) + text + data


def _read(file: BinaryIO, total: int) -> tuple[dict[str, Any], bytes] | None:
    """The next record of a file of so many bytes; None at its end, or if it is not whole."""
    sizes, checksum = file.read(_SIZES.size), file.read(_CHECKSUM)
    if len(checksum) < _CHECKSUM:
        return None
    lengths = _SIZES.unpack(sizes)
    if sum(lengths) > total - file.tell():
        return None
    text, data = map(file.read, lengths)
    if _checksum(sizes, text, data) != checksum:
        return None
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        return None
    step = about.get("step", 0) if isinstance(about, dict) else None
    return (about, data) if type(step) is int else None


def _checksum(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_CHECKSUM)
    for part in parts:
        digest.update(part)
    return digest.digest()
