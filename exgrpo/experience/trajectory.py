"""One rollout as it was sampled, and one training step's rollouts of one question.

Axes in names: `_T` runs over the response tokens of one trajectory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience import checked
from exgrpo.refusal import refuse, refuse_as


@dataclass(frozen=True, eq=False)
class Trajectory:
    """An immutable response: tokens as sampled, with the log-probs of the policy that sampled them.

    Attributes:
        tokens: int32 [T], the response only, never decoded and re-encoded. Read-only copy of the
            argument. Empty only if a note stands for the response.
        log_probs: float32 [T], natural log of pi_past(o_t | q, o_<t), the denominator of w*.
            Read-only copy. All NaN if they were not recorded (`without_log_probs`).
        step: global training step that generated it, 0 to 2**32 - 1.
        entropy: mean entropy in nats over the action tokens under the policy that sampled it
            (section 3.2); NaN if unknown.
        loss_mask: bool [T], true at the policy's own tokens; tokens of tools and environments are
            context. None if all tokens are the policy's. Read-only copy.
        reward: finite; the reward of the replayed row in its group.
        note: a text kept with it and never interpreted here, such as JSON; or None.
        grader: who judged it, as exgrpo.provenance writes it; None if that is unknown.

    Raises:
        ValueError: naming what is not 1-D, is empty, or has another length, type or range.
    """

    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    step: int
    entropy: float = math.nan
    loss_mask: npt.NDArray[np.bool_] | None = None
    reward: float = 1.0
    note: str | None = None
    grader: str | None = None

    def __post_init__(self) -> None:
        note = checked.text("note", self.note)
        tokens_T = checked.tokens(self.tokens, may_be_empty=note is not None)
        log_probs_T = checked.log_probs(self.log_probs, may_be_empty=tokens_T.size == 0)
        if tokens_T.shape != log_probs_T.shape:
            given = f"log_probs has {log_probs_T.size} entries for {tokens_T.size} tokens"
            raise ValueError(f"{given}: must be as many")
        entropy = float(self.entropy)
        if math.isinf(entropy) or entropy < -checked.ROUNDING:
            refuse("entropy", entropy, "a mean entropy in nats, 0 or more, or NaN if unknown")
        fields = {
            "tokens": tokens_T,
            "log_probs": log_probs_T,
            "step": checked.integer("step", self.step, 0, 2**32 - 1),
            "entropy": entropy,
            "loss_mask": checked.loss_mask(self.loss_mask, tokens_T.size),
            "reward": checked.reward(self.reward),
            "note": note,
            "grader": checked.text("grader", self.grader),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def without_log_probs(
        cls,
        tokens: Any,
        step: int,
        entropy: float = math.nan,
        loss_mask: Any = None,
        reward: float = 1.0,
        note: str | None = None,
        grader: str | None = None,
    ) -> Trajectory:
        """A trajectory without recorded log-probs, such as a teacher's; errors as the class."""
        tokens_T = checked.tokens(tokens, may_be_empty=note is not None)
        zeros_T = np.zeros(tokens_T.size, np.float32)
        trajectory = cls(
            tokens_T, zeros_T, step, entropy, loss_mask, reward=reward, note=note, grader=grader
        )
        blank_T = np.full(tokens_T.size, np.nan, np.float32)
        blank_T.setflags(write=False)
        object.__setattr__(trajectory, "log_probs", blank_T)
        return trajectory

    def __len__(self) -> int:
        return self.tokens.size

    def check_vocabulary(self, vocab_size: int) -> None:
        """ValueError if a token is not in 0..vocab_size-1."""
        highest = int(self.tokens.max(initial=0))
        if highest >= vocab_size:
            allowed = f"must be below {vocab_size}, the size of the vocabulary"
            raise ValueError(f"tokens holds {highest}: {allowed}")

    @property
    def has_log_probs(self) -> bool:
        return self.tokens.size > 0 and not math.isnan(self.log_probs[0])

    def of_actions(self, values_T: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The entries of [T] values at the policy's own tokens; all of them without a loss mask."""
        return values_T if self.loss_mask is None else values_T[self.loss_mask]

    def log_ratios(self, current_T: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """log pi_current - log pi_past at the policy's own tokens; it must have recorded log-probs.

        Args:
            current_T: [T], natural log-probs of the tokens under the current policy.
        """
        return self.of_actions(current_T - self.log_probs)

    @property
    def key(self) -> bytes:
        """The tokens as bytes, or the note if there are none: equal only for duplicates."""
        return self.tokens.tobytes() or (self.note or "").encode()


@dataclass(frozen=True)
class RolloutGroup:
    """One question's rollouts of one step.

    Attributes:
        question: stable identity of the question across steps, epochs and restarts; not empty.
        size: number of fresh rollouts that came back in this step, at least 1: K, K - 1 beside a
            replayed row, or fewer if sessions failed.
        successes: the correct fresh rollouts; the same tokens may occur more than once.
        replayed: number of replayed rows, 0 or 1; in neither `size` nor `successes`.
        refused: number of further successes that count for difficulty but cannot be stored, because
            their tokens and log-probs are not a valid Trajectory.
        failures: the other fresh rollouts, with their rewards; for replay of whole groups.
        rewards: of all fresh rollouts, in any order and range; empty if they are not known.
        replayed_reward: of the replayed row, if there is one.
        prompt: int [P], the tokens that they are responses to, for replay of whole groups; None
            where the loop renders the question itself.
        prefix: with how many tokens of a stored rollout each of them begins, which none of them
            sampled; such a group says where to cut next, and nothing of its question.

    Raises:
        ValueError: naming the field and its value.
    """

    question: str
    size: int
    successes: tuple[Trajectory, ...]
    replayed: int = 0
    refused: int = 0
    failures: tuple[Trajectory, ...] = ()
    rewards: tuple[float, ...] = ()
    replayed_reward: float = 1.0
    prompt: npt.NDArray[np.int32] | None = field(default=None, compare=False)
    prefix: int = 0

    @property
    def solved(self) -> int:
        """Number of correct fresh rollouts."""
        return len(self.successes) + self.refused

    @property
    def mean_reward(self) -> float:
        """Mean reward of the fresh rollouts; where unknown, the share of correct ones."""
        return sum(self.rewards) / self.size if self.rewards else self.solved / self.size

    @property
    def all_rewards(self) -> tuple[float, ...]:
        """The group's rewards, the replayed row's last; if unknown, 1 for a success, else 0."""
        known = self.rewards or (1.0,) * self.solved + (0.0,) * (self.size - self.solved)
        return known + (self.replayed_reward,) * self.replayed

    def __post_init__(self) -> None:
        if not isinstance(self.question, str) or not self.question:
            refuse("question", repr(self.question), "a non-empty string")
        object.__setattr__(self, "size", checked.integer("size", self.size, 1))
        object.__setattr__(self, "replayed", checked.integer("replayed", self.replayed, 0))
        object.__setattr__(self, "refused", checked.integer("refused", self.refused, 0))
        object.__setattr__(self, "successes", tuple(self.successes))
        object.__setattr__(self, "failures", tuple(self.failures))
        object.__setattr__(self, "rewards", tuple(map(float, self.rewards)))
        if self.replayed > 1:
            refuse("replayed", self.replayed, "0 or 1")
        if self.solved > self.size:
            refused = f" and refused is {self.refused}" if self.refused else ""
            allowed = f"must be at most size={self.size}"
            raise ValueError(f"successes has {len(self.successes)} entries{refused}: {allowed}")
        if self.solved + len(self.failures) > self.size:
            given = f"failures has {len(self.failures)} entries beside {self.solved} successes"
            raise ValueError(f"{given}: must be at most size={self.size} together")
        if self.rewards and len(self.rewards) != self.size:
            refuse_as(f"rewards has {len(self.rewards)} entries", f"be size={self.size}, or none")
        for name in ("successes", "failures"):
            for index, rollout in enumerate(getattr(self, name)):
                if not isinstance(rollout, Trajectory):
                    refuse_as(f"{name}[{index}] is a {type(rollout).__name__}", "be a Trajectory")
