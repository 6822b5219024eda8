"""A trajectory as one bytes object: 40 bytes and 8 per token, 1 bit per token for a loss mask, the note as UTF-8."""

from __future__ import annotations

import struct

import numpy as np

from exgrpo.experience.graders import number_of, text_of
from exgrpo.experience.trajectory import Trajectory

HEADER = struct.Struct("=qIIddII")  # serial, step, tokens, entropy, reward, bytes of the note, number of the grader
_ENTROPY, _ENTROPY_AT = struct.Struct("=d"), struct.calcsize("=qII")  # its place in the header
_BYTES_PER_TOKEN = 8


def pack(serial: int, trajectory: Trajectory) -> bytes:
    """One object instead of the dozen a Trajectory consists of."""
    tokens_T, mask = trajectory.tokens, trajectory.loss_mask
    note = b"" if trajectory.note is None else trajectory.note.encode()
    numbers = (trajectory.entropy, trajectory.reward, len(note), number_of(trajectory.grader))
    header = HEADER.pack(serial, trajectory.step, tokens_T.size, *numbers)
    mask_bits = b"" if mask is None else np.packbits(mask).tobytes()
    return b"".join((header, tokens_T.data, trajectory.log_probs.data, note, mask_bits))


def join(
    serial: int,
    step: int,
    entropy: float,
    tokens_T: memoryview,
    log_probs_T: memoryview,
    reward: float = 1.0,
    mask_bits: bytes = b"",
    note: bytes = b"",
    grader: str | None = None,
) -> bytes:
    """The same of what a file holds, validated when it was written: int32 tokens and as many float32 log-probs."""
    header = HEADER.pack(serial, step, len(tokens_T), entropy, reward, len(note), number_of(grader))
    return b"".join((header, tokens_T, log_probs_T, note, mask_bits))


def unpack(packed: bytes) -> Trajectory:
    """A trajectory whose arrays are read-only views of `packed` and keep it alive."""
    _, step, count, entropy, reward, note_bytes, grader = HEADER.unpack_from(packed)
    tokens_T = np.frombuffer(packed, dtype=np.int32, count=count, offset=HEADER.size)
    log_probs_T = np.frombuffer(packed, dtype=np.float32, count=count, offset=HEADER.size + 4 * count)
    end = HEADER.size + _BYTES_PER_TOKEN * count
    if len(packed) == end:
        return Trajectory.view(tokens_T, log_probs_T, step, entropy, None, reward, None, text_of(grader))
    note = packed[end : end + note_bytes].decode() if note_bytes else None
    bits = np.frombuffer(packed, dtype=np.uint8, offset=end + note_bytes)
    mask_T = np.unpackbits(bits, count=count).astype(np.bool_) if len(bits) else None
    if mask_T is not None:
        mask_T.setflags(write=False)
    return Trajectory.view(tokens_T, log_probs_T, step, entropy, mask_T, reward, note, text_of(grader))


def length(packed: bytes) -> int:
    """Number of tokens."""
    count: int = HEADER.unpack_from(packed)[2]
    return count


def serial(packed: bytes) -> int:
    number: int = HEADER.unpack_from(packed)[0]
    return number


def step(packed: bytes) -> int:
    number: int = HEADER.unpack_from(packed)[1]
    return number


def entropy(packed: bytes) -> float:
    """NaN if unknown."""
    nats: float = _ENTROPY.unpack_from(packed, _ENTROPY_AT)[0]
    return nats


def note_length(packed: bytes) -> int:
    """Bytes of the note."""
    count: int = HEADER.unpack_from(packed)[5]
    return count
