"""Whole groups of past rollouts, failures too, for ``trainer.exp_unit=group``."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exgrpo.experience import checked
from exgrpo.experience.trajectory import RolloutGroup, Trajectory


@dataclass(frozen=True, eq=False)
class StoredGroup:
    """One question's fresh rollouts of one step, each with its reward, from which its advantage
    follows.

    Attributes:
        step: the step whose rollouts they are.
        prompt: int [P], the tokens that they are responses to; None where the loop renders the
            question itself.

    Raises:
        ValueError: naming the field and its value.
    """

    question: str
    step: int
    rollouts: tuple[Trajectory, ...]
    prompt: npt.NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        checked.integer("step", self.step, 0, 2**32 - 1)
        if len(self.rollouts) < 2:
            given = f"rollouts has {len(self.rollouts)} entries"
            raise ValueError(f"{given}: a group must have 2 or more")

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rollouts))


class GroupBuffer:
    """A queue of groups, first in, first out; the same question may be in it several times.

    Args:
        max_groups: bound on its length; the oldest group is dropped first.
        max_age: groups older than this many steps are dropped; None: never.
    """

    def __init__(self, max_groups: int, max_age: int | None = None) -> None:
        self._held: deque[StoredGroup] = deque(maxlen=max_groups)
        self._max_age = max_age

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[StoredGroup]:
        """From the oldest to the newest."""
        return iter(self._held)

    def add(self, group: RolloutGroup, step: int) -> bool:
        """Store a group if all its rollouts are here and their rewards differ."""
        rollouts = (*group.successes, *group.failures)
        if len(rollouts) < max(2, group.size) or len({rollout.reward for rollout in rollouts}) < 2:
            return False
        self._held.append(StoredGroup(group.question, step, rollouts, group.prompt))
        return True

    def choose(
        self,
        count: int,
        rng: np.random.Generator,
        exclude: Collection[str] = frozenset(),
        weights: npt.NDArray[np.float64] | None = None,
    ) -> list[StoredGroup]:
        """Up to `count` groups of distinct questions, in random order.

        Args:
            weights: [len(self)], of each group in the draw, 0: never; None, or those that may be
                drawn all equal: uniformly.
        """
        every = np.ones(len(self._held)) if weights is None else weights
        pairs = zip(self._held, every.tolist(), strict=True)
        open_groups = [each for each in pairs if each[0].question not in exclude and each[1]]
        chosen: dict[str, StoredGroup] = {}
        while open_groups and len(chosen) < count:
            left = np.array([weight for _, weight in open_groups])
            # an equal draw takes one number of the generator, as it did before there were weights
            odds = None if (left == left[0]).all() else left / left.sum()
            picked, _ = open_groups[int(rng.choice(len(open_groups), p=odds))]
            chosen[picked.question] = picked
            open_groups = [each for each in open_groups if each[0].question != picked.question]
        return list(chosen.values())

    def drop(self, groups: Collection[StoredGroup]) -> None:
        """Remove these groups; those it does not hold are ignored."""
        gone = {id(group) for group in groups}
        self.hold([group for group in self._held if id(group) not in gone])

    def hold(self, groups: Iterable[StoredGroup]) -> None:
        """Hold these groups instead, from the oldest to the newest, as far as the bound allows."""
        self._held.clear()
        self._held.extend(groups)

    def keep_only(self, questions: Collection[str], max_prompt: int, max_tokens: int) -> int:
        """Drop groups of other questions, without a prompt or with too long a text; how many."""
        kept = [
            group
            for group in self._held
            if group.question in questions
            and group.prompt is not None
            and len(group.prompt) <= max_prompt
            and max(map(len, group.rollouts)) <= max_tokens
        ]
        dropped = len(self._held) - len(kept)
        self.hold(kept)
        return dropped

    def expire(self, step: int) -> None:
        """Drop what will be too old in the next step."""
        if self._max_age is None:
            return
        while self._held and self._held[0].step < step + 1 - self._max_age:
            self._held.popleft()
