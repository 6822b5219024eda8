"""Check a caller's mapping as a trajectory; batches of trajectories that the buffer returns."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience import checked
from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import Candidate
from exgrpo.refusal import refuse, refuse_as

REQUIRED = ("prompt", "rollout", "reward", "is_correct", "entropy")
OF_ROLLOUT = ("tokens", "log_probs", "loss_mask", "step", "is_replayed")
_MEANT = {"mask": "loss_mask", "response_mask": "loss_mask"}  # too far apart for difflib


class Record(NamedTuple):
    """A checked mapping.

    Attributes:
        prompt: the question, identified by its text.
        is_correct: whether the trajectory is a success.
        trajectory: has the rollout's text in its note, and no tokens if the mapping has none.
    """

    prompt: str
    is_correct: bool
    trajectory: Trajectory

    @classmethod
    def from_mapping(cls, row: Mapping[str, Any], step: int) -> Record:
        """Check a caller's mapping, as `flat` returns it.

        Args:
            step: the policy's number, if the mapping has none.

        Raises:
            ValueError: one line with the key, the value and what is allowed.
        """
        for key in REQUIRED:
            if key not in row:
                refuse_as(f"trajectory without {key!r}", f"have {', '.join(REQUIRED)}")
        _no_other_spelling(row, REQUIRED + OF_ROLLOUT)
        prompt, is_correct = _prompt(row["prompt"]), _truth(row["is_correct"])
        rollout = row["rollout"]
        tokens, log_probs = (_on_cpu(row.get(key)) for key in ("tokens", "log_probs"))
        if not isinstance(rollout, str) or (is_correct and not rollout and tokens is None):
            allowed = "must be a string, and not empty where it is correct without tokens"
            raise ValueError(f"rollout={rollout!r}: {allowed}, or a mapping with either")
        if tokens is None and log_probs is not None:
            refuse_as(f"log_probs has {len(log_probs)} entries without tokens", "come with them")
        if tokens is not None and np.size(tokens) == 0:
            refuse_as(f"tokens has shape {np.shape(tokens)}", "be 1-D and not empty")
        step, entropy = row.get("step", step), _entropy(row["entropy"])
        reward = _reward(row["reward"], is_correct)
        note = json.dumps({"rollout": rollout})  # ASCII, so that lone surrogates survive
        other_fields = (step, entropy, _on_cpu(row.get("loss_mask")), reward, note)
        if log_probs is None:
            known = [] if tokens is None else tokens
            trajectory = Trajectory.without_log_probs(known, *other_fields)
        else:
            trajectory = Trajectory(tokens, log_probs, *other_fields)
        return cls(prompt, is_correct, trajectory)


@dataclass(frozen=True, eq=False)
class ReplayBatch:
    """n trajectories drawn from the buffer; n is at least 1. `batch["prompts"]` is `batch.prompts`.

    Attributes:
        prompts: texts, as they were added.
        rollouts: a row each (exgrpo.buffer.policies), for the functions of exgrpo.buffer.tensors
            and as the `rollout` of `TrajectoryBuffer.add`: a mapping of prompt, text, tokens,
            log_probs, loss_mask, entropy (None if unknown), reward, step and is_replayed (True).
            The arrays are those of the fields below.
        rewards: float64 [n], as they were added, 0 to 1.
        texts: the rollouts' texts, as they were added; empty if added without.
        tokens: int32 [T_i] each, read-only; None if the trajectory was added without tokens.
        log_probs: float32 [T_i] each, in nats, under the tokens' policy; None if added without.
        entropies: float64 [n], recorded mean token entropies in nats; NaN if unknown.
        levels: float64 [n], the questions' current levels of difficulty; success rates by default.
        steps: int64 [n], the number of the policy that generated each.
        ages: int64 [n], policy_snapshot minus `steps`.
        loss_masks: bool [T_i] each, true at the policy's own tokens; None if all are.
    """

    prompts: list[str]
    rollouts: list[dict[str, Any]]
    rewards: npt.NDArray[np.float64]
    texts: list[str]
    tokens: list[npt.NDArray[np.int32] | None]
    log_probs: list[npt.NDArray[np.float32] | None]
    entropies: npt.NDArray[np.float64]
    levels: npt.NDArray[np.float64]
    steps: npt.NDArray[np.int64]
    ages: npt.NDArray[np.int64]
    loss_masks: list[npt.NDArray[np.bool_] | None]

    @classmethod
    def of(
        cls, candidates: Sequence[Candidate], levels: Sequence[float], policy_snapshot: int
    ) -> ReplayBatch:
        """The batch of these trajectories; `levels` [n] are those of their questions."""
        rollouts = [_row(prompt, trajectory) for prompt, trajectory in candidates]
        trajectories = [trajectory for _, trajectory in candidates]
        steps = np.array([trajectory.step for trajectory in trajectories], dtype=np.int64)
        return cls(
            prompts=[prompt for prompt, _ in candidates],
            rollouts=rollouts,
            rewards=np.array([trajectory.reward for trajectory in trajectories]),
            texts=[row["text"] for row in rollouts],
            tokens=[row["tokens"] for row in rollouts],
            log_probs=[row["log_probs"] for row in rollouts],
            entropies=np.array([trajectory.entropy for trajectory in trajectories]),
            levels=np.array(levels),
            steps=steps,
            ages=policy_snapshot - steps,
            loss_masks=[trajectory.loss_mask for trajectory in trajectories],
        )

    def __len__(self) -> int:
        return len(self.prompts)

    def keys(self) -> list[str]:
        """The names of the fields."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            allowed = f"must be one of {', '.join(self.keys())}"
            raise KeyError(f"no field {name!r} in a ReplayBatch: {allowed}")
        return getattr(self, name)


def flat(trajectory: Mapping[str, Any]) -> Mapping[str, Any]:
    """The trajectory with what its rollout, if that is a mapping, says of itself; else unchanged.

    The rollout's own prompt, tokens, log_probs, loss_mask, step and is_replayed replace those
    beside it, and its text is `rollout`. So a rollout is filed under the question that it answers,
    also where a loop pairs rollouts with other prompts. What else it holds is left out.

    Raises:
        ValueError: a key of the rollout is another spelling of one of these.
    """
    rollout = trajectory.get("rollout")
    if not isinstance(rollout, Mapping):
        return trajectory
    _no_other_spelling(rollout, ("prompt", "text", *OF_ROLLOUT))
    own = {key: rollout[key] for key in ("prompt", *OF_ROLLOUT) if rollout.get(key) is not None}
    text = rollout.get("text")
    return {**trajectory, **own, "rollout": "" if text is None else text}


def _no_other_spelling(row: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in row.keys() - {*keys}:
        close = difflib.get_close_matches(str(key), keys, n=1, cutoff=0.8)
        if meant := _MEANT.get(key) or next(iter(close), None):
            raise ValueError(f"{key}: no such key; did you mean {meant}?")


def _row(prompt: str, trajectory: Trajectory) -> dict[str, Any]:
    """A stored trajectory as a row of ReplayBatch.rollouts."""
    return {
        "prompt": prompt,
        "text": str(json.loads(trajectory.note or "{}").get("rollout", "")),
        "tokens": trajectory.tokens if len(trajectory) else None,
        "log_probs": trajectory.log_probs if trajectory.has_log_probs else None,
        "loss_mask": trajectory.loss_mask,
        "entropy": None if math.isnan(trajectory.entropy) else trajectory.entropy,
        "reward": trajectory.reward,
        "step": trajectory.step,
        "is_replayed": True,
    }


def _on_cpu(values: Any) -> Any:
    """A torch tensor detached and on the CPU, where numpy can read it; anything else unchanged."""
    return values.detach().cpu() if hasattr(values, "detach") else values


def _prompt(value: object) -> str:
    if not isinstance(value, str) or not value:
        refuse("prompt", repr(value), "a non-empty string; render a chat's messages first")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"prompt={value!r}: must be valid Unicode ({error.reason})") from None
    return value


def _entropy(value: Any) -> float:
    entropy = math.nan if value is None else checked.number(value)
    if value is not None and not 0 <= entropy < math.inf:
        refuse("entropy", value, "a mean token entropy in nats, 0 or more, or None if unknown")
    return entropy


def _reward(value: Any, is_correct: bool) -> float:
    """The reward to keep; that of a failure is only checked, and 0 is kept."""
    reward = checked.number(value)
    if not math.isfinite(reward) or (is_correct and not 0 <= reward <= 1):
        refuse("reward", value, "a finite number, and between 0 and 1 where it is correct")
    return reward if is_correct else 0.0


def _truth(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or value in (0, 1):
        return bool(value)
    refuse("is_correct", repr(value), "True or False")
