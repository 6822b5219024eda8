"""One rollout as it was sampled, and what a step of training learnt about one question.

Axes in names: `_T` runs over the response tokens of one trajectory.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Log-probs and entropies come out of float32 or bfloat16 arithmetic; a value this far beyond zero is rounding.
_ROUNDING = 1e-3


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A response, immutable: the tokens as sampled and the log-probs of the policy that sampled them.

    Attributes:
        tokens: int32 [T], the response only, never decoded and encoded again. Read-only; a copy of what was handed in.
        log_probs: float32 [T], natural log of pi_past(o_t | q, o_<t), the denominator of w*. Read-only copy. All NaN if
            nobody recorded them, which only `without_log_probs` makes.
        step: global training step that generated it, at least 0.
        entropy: mean token entropy in nats under the policy that sampled it (section 3.2); NaN if unknown.

    Raises:
        ValueError: an array is not 1-D, is empty, or has another length, type or range; the message names it.
    """

    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    step: int
    entropy: float = math.nan

    def __post_init__(self) -> None:
        tokens_T, log_probs_T = _tokens(self.tokens), _log_probs(self.log_probs)
        if tokens_T.shape != log_probs_T.shape:
            raise ValueError(f"log_probs has {log_probs_T.size} entries for {tokens_T.size} tokens: must be as many")
        step = _integer("step", self.step, 0)
        entropy = float(self.entropy)
        if math.isinf(entropy) or entropy < -_ROUNDING:
            raise ValueError(f"entropy={entropy}: must be a mean entropy in nats, 0 or more, or NaN if unknown")
        for name, value in (("tokens", tokens_T), ("log_probs", log_probs_T), ("step", step), ("entropy", entropy)):
            object.__setattr__(self, name, value)

    @classmethod
    def without_log_probs(cls, tokens: Any, step: int, entropy: float = math.nan) -> Trajectory:
        """A trajectory whose author's log-probs are not known, such as a teacher's text. ValueError as above."""
        tokens_T = _tokens(tokens)
        checked = cls(tokens_T, np.zeros(tokens_T.size, np.float32), step, entropy)
        blank_T = np.full(tokens_T.size, np.nan, np.float32)
        blank_T.setflags(write=False)
        return cls.view(checked.tokens, blank_T, checked.step, checked.entropy)

    @classmethod
    def view(
        cls, tokens_T: npt.NDArray[np.int32], log_probs_T: npt.NDArray[np.float32], step: int, entropy: float
    ) -> Trajectory:
        """A trajectory over read-only arrays that have been validated before; they are neither checked nor copied."""
        trajectory = object.__new__(cls)
        for name, value in (("tokens", tokens_T), ("log_probs", log_probs_T), ("step", step), ("entropy", entropy)):
            object.__setattr__(trajectory, name, value)
        return trajectory

    def __len__(self) -> int:
        return self.tokens.size

    def check_vocabulary(self, vocab_size: int) -> None:
        """ValueError if a token is not in 0..vocab_size-1."""
        highest = int(self.tokens.max())
        if highest >= vocab_size:
            raise ValueError(f"tokens holds {highest}: must be below {vocab_size}, the size of the vocabulary")

    @property
    def has_log_probs(self) -> bool:
        return not math.isnan(self.log_probs[0])

    @property
    def key(self) -> bytes:
        """The bytes of the tokens; trajectories of a question are duplicates if and only if these are equal."""
        return self.tokens.tobytes()


@dataclass(frozen=True)
class RolloutGroup:
    """What one step produced for one question.

    Attributes:
        question: stable identity of the question across steps, epochs and restarts; not empty.
        size: fresh rollouts that came back in this step, at least 1: K, K - 1 beside a replayed row, or fewer if
            sessions failed.
        successes: the fresh rollouts with reward 1; the same tokens may stand in it more than once.
        replayed: replayed rows that stood in the group, 0 or 1; they are in neither `size` nor `successes`.
        refused: further successes, which count for difficulty but cannot be kept: their tokens and log-probs do not
            make a Trajectory.

    Raises:
        ValueError: naming the field and its value.
    """

    question: str
    size: int
    successes: tuple[Trajectory, ...]
    replayed: int = 0
    refused: int = 0

    @property
    def solved(self) -> int:
        """Fresh rollouts with reward 1."""
        return len(self.successes) + self.refused

    def __post_init__(self) -> None:
        if not isinstance(self.question, str) or not self.question:
            raise ValueError(f"question={self.question!r}: must be a non-empty string")
        object.__setattr__(self, "size", _integer("size", self.size, 1))
        object.__setattr__(self, "replayed", _integer("replayed", self.replayed, 0))
        object.__setattr__(self, "refused", _integer("refused", self.refused, 0))
        object.__setattr__(self, "successes", tuple(self.successes))
        if self.replayed > 1:
            raise ValueError(f"replayed={self.replayed}: must be 0 or 1")
        if self.solved > self.size:
            refused = f" and refused is {self.refused}" if self.refused else ""
            raise ValueError(f"successes has {len(self.successes)} entries{refused}: must be at most size={self.size}")
        for index, success in enumerate(self.successes):
            if not isinstance(success, Trajectory):
                raise ValueError(f"successes[{index}] is a {type(success).__name__}: must be a Trajectory")


def _integer(name: str, value: Any, low: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low:
        raise ValueError(f"{name}={value!r}: must be an integer of at least {low}")
    return number


def _vector(name: str, values: Any) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: must be 1-D and not empty")
    return array


def _tokens(values: Any) -> npt.NDArray[np.int32]:
    array = _vector("tokens", values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"tokens has type {array.dtype}: must be an integer type")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > np.iinfo(np.int32).max:
        raise ValueError(f"tokens holds {low if low < 0 else high}: must be between 0 and 2**31 - 1")
    copy = array.astype(np.int32)
    copy.setflags(write=False)
    return copy


def _log_probs(values: Any) -> npt.NDArray[np.float32]:
    array = _vector("log_probs", values)
    if array.dtype.kind != "f":
        raise ValueError(f"log_probs has type {array.dtype}: must be a floating type")
    with np.errstate(over="ignore"):  # what overflows becomes infinite and is refused below
        copy = array.astype(np.float32)
    wrong = ~np.isfinite(copy) | (copy > _ROUNDING)
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"log_probs[{index}]={array[index]}: must be finite and not above 0 (natural logarithm)")
    copy.setflags(write=False)
    return copy
