"""A trajectory as bytes: 40, 8 a token, 1 bit a token for a loss mask, the note as UTF-8."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.trajectory import Trajectory

# serial, step, tokens, entropy, reward, bytes of the note, number of the grader
HEADER = struct.Struct("=qIIddII")
_BYTES_PER_TOKEN = 8
_TEXTS: list[str | None] = [None]  # number -> text; only grows, a run has a handful
_NUMBERS: dict[str | None, int] = {None: 0}


def _number(at: str) -> Callable[[bytes], Any]:
    """A property that reads one number of the header, by its place there."""
    read = struct.Struct(at).unpack_from
    return lambda packed: read(packed)[0]


serial, step, length = _number("=q"), _number("=8xI"), _number("=12xI")
entropy = _number("=16xd")  # NaN if unknown
_note_bytes = _number("=32xI")


def pack(serial: int, trajectory: Trajectory) -> bytes:
    """The trajectory as one bytes object, instead of the dozen objects of a Trajectory."""
    tokens_T, mask = trajectory.tokens, trajectory.loss_mask
    note = b"" if trajectory.note is None else trajectory.note.encode()
    numbers = (trajectory.entropy, trajectory.reward, len(note), _grader_number(trajectory.grader))
    header = HEADER.pack(serial, trajectory.step, tokens_T.size, *numbers)
    mask_bits = b"" if mask is None else np.packbits(mask).tobytes()
    return b"".join((header, tokens_T.data, trajectory.log_probs.data, note, mask_bits))


def join(
    serial: int,
    step: int,
    entropy: float,
    tokens_T: memoryview,
    log_probs_T: memoryview,
    reward: float,
    mask_bits: bytes,
    note: bytes,
    grader: str | None,
) -> bytes:
    """As `pack`, from the columns of a file, which were checked when it was written."""
    header = HEADER.pack(
        serial, step, len(tokens_T), entropy, reward, len(note), _grader_number(grader)
    )
    return b"".join((header, tokens_T, log_probs_T, note, mask_bits))


class _Stored(Trajectory):
    """A trajectory that makes its arrays at their first use: most rules read numbers only."""

    def __getattr__(self, name: str) -> Any:  # called only for what is not there yet
        if name not in ("tokens", "log_probs"):
            raise AttributeError(f"Trajectory has no attribute {name!r}")
        fields = self.__dict__
        packed = fields["packed"]
        count = length(packed)
        dtype, offset = (np.int32, 0) if name == "tokens" else (np.float32, 4 * count)
        fields[name] = np.frombuffer(packed, dtype=dtype, count=count, offset=HEADER.size + offset)
        return fields[name]


def unpack(packed: bytes) -> Trajectory:
    """A trajectory whose arrays are read-only views of `packed` and keep it alive."""
    _, step, count, entropy, reward, note_bytes, grader = HEADER.unpack_from(packed)
    mask_T, note = None, None
    end = HEADER.size + _BYTES_PER_TOKEN * count
    if len(packed) > end:
        note = packed[end : end + note_bytes].decode() if note_bytes else None
        mask_T = _mask(packed, end + note_bytes, count)
    numbers = {"step": step, "entropy": entropy, "reward": reward, "grader": _TEXTS[grader]}
    trajectory = object.__new__(_Stored)
    # the frozen dataclass' own way costs more than all the rest
    trajectory.__dict__.update(numbers, packed=packed, loss_mask=mask_T, note=note)
    return trajectory


def _mask(packed: bytes, offset: int, count: int) -> npt.NDArray[np.bool_] | None:
    bits = np.frombuffer(packed, dtype=np.uint8, offset=offset)
    if not len(bits):
        return None
    mask_T = np.unpackbits(bits, count=count).astype(np.bool_)
    mask_T.setflags(write=False)
    return mask_T


def at_step(packed: bytes, step: int) -> bytes:
    """The same trajectory, as of another step."""
    number, _, *rest = HEADER.unpack_from(packed)
    return HEADER.pack(number, step, *rest) + packed[HEADER.size :]


def key(packed: bytes) -> bytes:
    """As Trajectory.key."""
    tokens_end = HEADER.size + 4 * length(packed)
    if tokens_end > HEADER.size:
        return packed[HEADER.size : tokens_end]
    return packed[tokens_end : tokens_end + _note_bytes(packed)]


def _grader_number(grader: str | None) -> int:
    """A number that stands for this text in this process; files hold the text."""
    number = _NUMBERS.get(grader)
    if number is None:
        number = _NUMBERS[grader] = len(_TEXTS)
        _TEXTS.append(grader)
    return number
