"""A trajectory as one bytes object: header, tokens, log-probs; 24 bytes and 8 a token."""

from __future__ import annotations

import math
import struct

import numpy as np

from exgrpo.experience.trajectory import Trajectory

HEADER = struct.Struct("=qqd")  # serial, step, entropy
BYTES_PER_TOKEN = 8


def pack(serial: int, trajectory: Trajectory) -> bytes:
    """One object instead of the dozen a Trajectory consists of."""
    return join(serial, trajectory.step, trajectory.entropy, trajectory.tokens.data, trajectory.log_probs.data)


def join(serial: int, step: int, entropy: float, tokens_T: memoryview, log_probs_T: memoryview) -> bytes:
    """The same of what has been validated before: int32 tokens and as many float32 log-probs."""
    return b"".join((HEADER.pack(serial, step, entropy), tokens_T, log_probs_T))


def unpack(packed: bytes) -> Trajectory:
    """A trajectory whose arrays are read-only views of `packed`, which they keep alive."""
    _, step, entropy = HEADER.unpack_from(packed)
    tokens_T = np.frombuffer(packed, dtype=np.int32, count=length(packed), offset=HEADER.size)
    log_probs_T = np.frombuffer(packed, dtype=np.float32, count=length(packed), offset=HEADER.size + tokens_T.nbytes)
    return Trajectory.view(tokens_T, log_probs_T, step, entropy)


def length(packed: bytes) -> int:
    """Tokens."""
    return (len(packed) - HEADER.size) // BYTES_PER_TOKEN


def serial(packed: bytes) -> int:
    number: int = HEADER.unpack_from(packed)[0]
    return number


def step(packed: bytes) -> int:
    number: int = HEADER.unpack_from(packed)[1]
    return number


def rank(packed: bytes) -> float:
    """The recorded entropy; infinite where it is not known."""
    entropy: float = HEADER.unpack_from(packed)[2]
    return math.inf if math.isnan(entropy) else entropy
