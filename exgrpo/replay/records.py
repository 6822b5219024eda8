"""A trajectory as a caller's mapping, checked; and a batch of them as it comes out of the buffer."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.trajectory import Trajectory

REQUIRED = ("prompt", "rollout", "reward", "is_correct", "entropy")
OPTIONAL = ("tokens", "log_probs", "step")


@dataclass(frozen=True)
class Record:
    """A checked trajectory.

    Attributes:
        prompt: the question, which is its own identity.
        rollout: the response's text.
        reward: any finite number.
        is_correct: whether it is a success.
        trajectory: tokens, log-probs, step and entropy; without tokens the rollout's code points stand in for them.
        has_tokens: whether the tokens are a tokenizer's.
    """

    prompt: str
    rollout: str
    reward: float
    is_correct: bool
    trajectory: Trajectory
    has_tokens: bool

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], step: int) -> Record:
        """Check a caller's mapping.

        Args:
            step: the policy's number where the mapping has none.

        Raises:
            ValueError: one line with the key, the value and what is allowed.
        """
        for key in REQUIRED:
            if key not in given:
                raise ValueError(f"trajectory without {key!r}: must have {', '.join(REQUIRED)}")
        for key in given.keys() - {*REQUIRED, *OPTIONAL}:
            if close := difflib.get_close_matches(str(key), REQUIRED + OPTIONAL, n=1, cutoff=0.8):
                raise ValueError(f"{key}: no such key; did you mean {close[0]}?")
        prompt, rollout = _prompt(given["prompt"]), given["rollout"]
        tokens, log_probs = given.get("tokens"), given.get("log_probs")
        correct = _truth(given["is_correct"])
        if not isinstance(rollout, str) or (correct and not rollout and tokens is None):
            raise ValueError(f"rollout={rollout!r}: must be a string, and not empty where it is correct without tokens")
        if tokens is None and log_probs is not None:
            raise ValueError(f"log_probs has {len(log_probs)} entries without tokens: must come with them")
        chosen = [ord(character) for character in rollout or " "] if tokens is None else tokens
        step, entropy = given.get("step", step), _entropy(given["entropy"])
        if log_probs is None:
            trajectory = Trajectory.without_log_probs(chosen, step, entropy)
        else:
            trajectory = Trajectory(chosen, log_probs, step, entropy)
        return cls(prompt, rollout, _reward(given["reward"]), correct, trajectory, tokens is not None)


@dataclass(frozen=True, eq=False)
class ReplayBatch:
    """n trajectories, drawn from the buffer; n is never 0.

    Attributes:
        prompts, rollouts: texts, as they went in.
        rewards: float64 [n], as they went in.
        tokens: int32 [T_i] each, read-only; None where the trajectory was added without.
        log_probs: float32 [T_i] each, of the policy that wrote them, in nats; None where it was added without.
        entropies: float64 [n], recorded mean token entropies in nats; NaN where unknown.
        levels: float64 [n], the questions' levels of difficulty now; success rates by default.
        steps: int64 [n], the number of the policy that wrote each.
        ages: int64 [n], policy_snapshot minus `steps`.
    """

    prompts: list[str]
    rollouts: list[str]
    rewards: npt.NDArray[np.float64]
    tokens: list[npt.NDArray[np.int32] | None]
    log_probs: list[npt.NDArray[np.float32] | None]
    entropies: npt.NDArray[np.float64]
    levels: npt.NDArray[np.float64]
    steps: npt.NDArray[np.int64]
    ages: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.prompts)


def _prompt(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"prompt={value!r}: must be a non-empty string; render a chat's messages first")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"prompt={value!r}: must be valid Unicode ({error.reason})") from None
    return value


def _entropy(value: Any) -> float:
    entropy = math.nan if value is None else _number(value)
    if value is not None and not 0 <= entropy < math.inf:
        raise ValueError(f"entropy={value}: must be a mean token entropy in nats, 0 or more, or None if unknown")
    return entropy


def _reward(value: Any) -> float:
    reward = _number(value)
    if not math.isfinite(reward):
        raise ValueError(f"reward={value}: must be a finite number")
    return reward


def _number(value: Any) -> float:
    """NaN, which no range contains, where there is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _truth(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or value in (0, 1):
        return bool(value)
    raise ValueError(f"is_correct={value!r}: must be True or False")
