"""The fields of a trajectory, checked and copied; ValueError: name, value, what is allowed."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.refusal import refuse, refuse_as

# Log-probs and entropies come out of float32 or bfloat16 arithmetic; a value this far beyond zero
# is rounding.
ROUNDING = 1e-3


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or (high is not None and number > high):
        upper = "" if high is None else f" and at most {high}"
        refuse(name, repr(value), f"an integer of at least {low}{upper}")
    return number


def vector(name: str, values: Any, may_be_empty: bool) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size == 0 and not may_be_empty):
        refuse_as(f"{name} has shape {array.shape}", "be 1-D and not empty")
    return array


def tokens(values: Any, may_be_empty: bool) -> npt.NDArray[np.int32]:
    array = vector("tokens", values, may_be_empty)
    if array.size and array.dtype.kind not in "iu":
        refuse_as(f"tokens has type {array.dtype}", "be an integer type")
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    if low < 0 or high > np.iinfo(np.int32).max:
        refuse_as(f"tokens holds {low if low < 0 else high}", "be between 0 and 2**31 - 1")
    copy = array.astype(np.int32)
    copy.setflags(write=False)
    return copy


def log_probs(values: Any, may_be_empty: bool) -> npt.NDArray[np.float32]:
    array = vector("log_probs", values, may_be_empty)
    if array.size and array.dtype.kind != "f":
        refuse_as(f"log_probs has type {array.dtype}", "be a floating type")
    with np.errstate(over="ignore"):  # a value that overflows becomes infinite and is refused below
        copy = array.astype(np.float32)
    wrong = ~np.isfinite(copy) | (copy > ROUNDING)
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        refuse(f"log_probs[{index}]", array[index], "finite and not above 0 (natural logarithm)")
    copy.setflags(write=False)
    return copy


def loss_mask(values: Any, length: int) -> npt.NDArray[np.bool_] | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.shape != (length,):
        refuse_as(f"loss_mask has shape {array.shape} for {length} tokens", "be as many")
    if not np.isin(array, (0, 1)).all():
        refuse_as("loss_mask", "be true or false, or 0 or 1, at each token")
    if not array.any():
        refuse_as("loss_mask leaves no token", "leave one of the policy's own")
    if array.all():
        return None
    copy = array.astype(np.bool_)
    copy.setflags(write=False)
    return copy


def number(value: Any) -> float:
    """The value as a float; NaN, which is in no range, if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def reward(value: Any) -> float:
    reward = number(value)
    if not math.isfinite(reward):
        refuse("reward", value, "a finite number")
    return reward


def text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        refuse(name, repr(str(value)[:60]), "a text that is not empty, or None")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}={value[:60]!r}: must be valid Unicode ({error.reason})") from None
    return value
