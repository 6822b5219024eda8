"""A trajectory as a caller's mapping, checked; and a batch of them as it comes out of the buffer."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience.choice import Candidate
from exgrpo.experience.trajectory import Trajectory

REQUIRED = ("prompt", "rollout", "reward", "is_correct", "entropy")
OPTIONAL = ("tokens", "log_probs", "loss_mask", "step")


class Record(NamedTuple):
    """A checked mapping.

    Attributes:
        prompt: the question, which is its own identity.
        is_correct: whether it is a success.
        trajectory: with the rollout's text in its note; without tokens where the mapping has none.
    """

    prompt: str
    is_correct: bool
    trajectory: Trajectory

    @classmethod
    def from_mapping(cls, row: Mapping[str, Any], step: int) -> Record:
        """Check a caller's mapping.

        Args:
            step: the policy's number where the mapping has none.

        Raises:
            ValueError: one line with the key, the value and what is allowed.
        """
        for key in REQUIRED:
            if key not in row:
                raise ValueError(f"trajectory without {key!r}: must have {', '.join(REQUIRED)}")
        for key in row.keys() - {*REQUIRED, *OPTIONAL}:
            if close := difflib.get_close_matches(str(key), REQUIRED + OPTIONAL, n=1, cutoff=0.8):
                raise ValueError(f"{key}: no such key; did you mean {close[0]}?")
        prompt, is_correct = _prompt(row["prompt"]), _truth(row["is_correct"])
        rollout, tokens, log_probs = row["rollout"], _on_cpu(row.get("tokens")), _on_cpu(row.get("log_probs"))
        if not isinstance(rollout, str) or (is_correct and not rollout and tokens is None):
            raise ValueError(f"rollout={rollout!r}: must be a string, and not empty where it is correct without tokens")
        if tokens is None and log_probs is not None:
            raise ValueError(f"log_probs has {len(log_probs)} entries without tokens: must come with them")
        if tokens is not None and np.size(tokens) == 0:
            raise ValueError(f"tokens has shape {np.shape(tokens)}: must be 1-D and not empty")
        step, entropy = row.get("step", step), _entropy(row["entropy"])
        rest = (step, entropy, row.get("loss_mask"), _reward(row["reward"], is_correct), note_of(rollout))
        if log_probs is None:
            trajectory = Trajectory.without_log_probs([] if tokens is None else tokens, *rest)
        else:
            trajectory = Trajectory(tokens, log_probs, *rest)
        return cls(prompt, is_correct, trajectory)


@dataclass(frozen=True, eq=False)
class ReplayBatch:
    """n trajectories, drawn from the buffer; n is never 0. `batch["prompts"]` is `batch.prompts`.

    Attributes:
        prompts, rollouts: texts, as they went in.
        rewards: float64 [n], as they went in, 0 to 1.
        tokens: int32 [T_i] each, read-only; None where the trajectory was added without.
        log_probs: float32 [T_i] each, of the policy that wrote them, in nats; None where it was added without.
        entropies: float64 [n], recorded mean token entropies in nats; NaN where unknown.
        levels: float64 [n], the questions' levels of difficulty now; success rates by default.
        steps: int64 [n], the number of the policy that wrote each.
        ages: int64 [n], policy_snapshot minus `steps`.
        loss_masks: bool [T_i] each, true at the policy's own tokens; None where all are.
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
    loss_masks: list[npt.NDArray[np.bool_] | None]

    @classmethod
    def of(cls, candidates: Sequence[Candidate], levels: Sequence[float], policy_snapshot: int) -> ReplayBatch:
        """The batch of these trajectories of the buffer; `levels` [n] are their questions'."""
        trajectories = [trajectory for _, trajectory in candidates]
        steps = np.array([each.step for each in trajectories], dtype=np.int64)
        return cls(
            prompts=[prompt for prompt, _ in candidates],
            rollouts=[json.loads(each.note or "{}").get("rollout", "") for each in trajectories],
            rewards=np.array([each.reward for each in trajectories]),
            tokens=[each.tokens if len(each) else None for each in trajectories],
            log_probs=[each.log_probs if each.has_log_probs else None for each in trajectories],
            entropies=np.array([each.entropy for each in trajectories]),
            levels=np.array(levels),
            steps=steps,
            ages=policy_snapshot - steps,
            loss_masks=[each.loss_mask for each in trajectories],
        )

    def __len__(self) -> int:
        return len(self.prompts)

    def keys(self) -> list[str]:
        """The names of the fields."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(f"no field {name!r} in a ReplayBatch: must be one of {', '.join(self.keys())}")
        return getattr(self, name)

    def rows(self) -> list[dict[str, Any]]:
        """One mapping a trajectory, as `TrajectoryBuffer.add` and the functions of exgrpo.replay.tensors take it."""
        return [
            {
                "prompt": self.prompts[row],
                "rollout": self.rollouts[row],
                "reward": float(self.rewards[row]),
                "is_correct": True,
                "entropy": None if math.isnan(self.entropies[row]) else float(self.entropies[row]),
                "tokens": self.tokens[row],
                "log_probs": self.log_probs[row],
                "loss_mask": self.loss_masks[row],
                "step": int(self.steps[row]),
                "is_replayed": True,
            }
            for row in range(len(self))
        ]


def note_of(rollout: str) -> str:
    """A rollout's text as the note of its trajectory: JSON of ASCII alone, so that lone surrogates survive."""
    return json.dumps({"rollout": rollout})


def _on_cpu(values: Any) -> Any:
    """A tensor of torch without its gradient, where numpy can read it; anything else as it is."""
    return values.detach().cpu() if hasattr(values, "detach") else values


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


def _reward(value: Any, is_correct: bool) -> float:
    """What is kept of a reward: a failure's is checked alone."""
    reward = _number(value)
    if not math.isfinite(reward) or (is_correct and not 0 <= reward <= 1):
        raise ValueError(f"reward={value}: must be a finite number, and between 0 and 1 where it is correct")
    return reward if is_correct else 0.0


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
