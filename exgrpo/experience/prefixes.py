"""Prefixes (`trainer.exp_unit=prefix`): a stored rollout is cut, and today's policy continues it.

What is trained on is today's policy's alone, the continuations: no importance ratio, the prefix is
context (2605.05112). Of a question that fails more often than not a success is cut, of any other a
failure, so that a group is half right more often; where it is cut moves towards that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.trajectory import RolloutGroup

FIRST = 0.5  # where a question's rollout is cut at first, as a share of its tokens
LEAST, MOST = 0.1, 0.9
GAIN = 0.5  # how far the cut moves for continuations that are all right, or all wrong: half of this


class Prefix(NamedTuple):
    """The beginning of a rollout.

    Attributes:
        tokens: int32 [P], at least 1 and less than its rollout has.
        of_success: whether that rollout was right.
    """

    tokens: npt.NDArray[np.int32]
    of_success: bool


class Prefixes:
    """Cuts rollouts, and remembers where by question."""

    def __init__(self) -> None:
        self._cuts: dict[str, tuple[bool, float]] = {}  # question -> of a success, share of tokens

    def cut(
        self, group: StoredGroup, solved: float, threshold: float, rng: np.random.Generator
    ) -> Prefix | None:
        """The beginning of one of the group's rollouts, at random; None if none is long enough.

        Args:
            solved: share of right rollouts of the question's newest fresh group.
            threshold: a reward above it is a success.
        """
        of_success = solved < 0.5
        long_enough = [one for one in group.rollouts if len(one) > 1]
        wanted = [one for one in long_enough if (one.reward > threshold) == of_success]
        if not wanted:
            return None
        one = wanted[int(rng.integers(len(wanted)))]
        known, share = self._cuts.get(group.question, (of_success, FIRST))
        share = share if known == of_success else FIRST
        self._cuts[group.question] = of_success, share
        return Prefix(one.tokens[: max(1, int(share * len(one)))], of_success)

    def observe(self, groups: Iterable[RolloutGroup]) -> None:
        """Move the cuts by what came of continuations; more of a success makes it easier."""
        for group in groups:
            of_success, share = self._cuts.get(group.question, (True, FIRST))
            too_easy = group.solved / group.size - 0.5
            share += GAIN * (-too_easy if of_success else too_easy)
            self._cuts[group.question] = of_success, min(MOST, max(LEAST, share))

    def share(self, question: str) -> float:
        """Where the question's rollout is cut next."""
        return self._cuts.get(question, (True, FIRST))[1]

    def state(self) -> dict[str, Any]:
        """JSON values."""
        return {question: list(cut) for question, cut in self._cuts.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._cuts = {name: (bool(kind), float(share)) for name, (kind, share) in state.items()}


def column(questions: Iterable[str], prefixes: Mapping[str, Prefix]) -> npt.NDArray[np.object_]:
    """The column `prefix` of a batch of prompts: token ids as text, empty for none."""
    none = Prefix(np.empty(0, np.int32), False)
    texts = [" ".join(map(str, prefixes.get(name, none).tokens.tolist())) for name in questions]
    return np.array(texts, dtype=object)
