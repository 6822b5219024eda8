"""The prompts in flight: rollouts were requested for them, and no step has trained on these yet.

In verl's asynchronous modes a prompt may be trained on steps after it was drawn, in another process
after a resume, or never. So what the trainer must know of it belongs to its uid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class Prompt(NamedTuple):
    """A question as it was drawn.

    Attributes:
        question: its id.
        is_replayed: whether K - 1 rollouts were requested, so that a replayed trajectory completes
            the group.
        mixed: whether mixing had begun.
    """

    question: str
    is_replayed: bool
    mixed: bool


class InFlight:
    """uid -> Prompt, in the order of drawing, and the number of the step's prompts so far."""

    def __init__(self) -> None:
        self._prompts: dict[str, Prompt] = {}
        self._step = -1
        self._asked = 0

    def first_position(self, step: int, size: int) -> int:
        """The position in the step of the first of its next `size` prompts."""
        if step != self._step:
            self._step, self._asked = step, 0
        self._asked += size
        return self._asked - size

    def add(self, uid: str, prompt: Prompt) -> None:
        self._prompts[uid] = prompt

    def add_drawn(self, columns: dict[str, Any], mixed: bool) -> None:
        """The prompts of a batch by its columns, of which `is_replayed` is taken out."""
        marks = columns.pop("is_replayed")
        for uid, question, mark in zip(columns["uid"], columns["question_id"], marks, strict=True):
            self.add(uid, Prompt(question, bool(mark), mixed))

    def take(self, uids: Collection[str]) -> dict[str, Prompt]:
        """Remove the prompts of these uids and return them, sorted by uid."""
        return {uid: self._prompts.pop(uid) for uid in sorted(uids) if uid in self._prompts}

    def is_replayed(self, uid: str) -> bool:
        """Whether a replayed trajectory will complete the group; False if it is not in flight."""
        return uid in self._prompts and self._prompts[uid].is_replayed

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all other prompts, which verl has evicted: their questions may be drawn again."""
        kept = [uid for uid in self._prompts if uid in uids]
        self._prompts = {uid: self._prompts[uid] for uid in kept}

    @property
    def questions(self) -> list[str]:
        """The questions in flight, each once."""
        return [prompt.question for prompt in self._prompts.values()]

    def state(self) -> dict[str, list[Any]]:
        """uid -> question, is_replayed, mixed, as JSON values."""
        return {uid: list(prompt) for uid, prompt in self._prompts.items()}

    def restore(self, state: Mapping[str, Collection[Any]], in_queue: set[str], step: int) -> None:
        """Go on from the `state` of a step; RuntimeError if the restored queue lacks a prompt."""
        if lost := state.keys() - in_queue:
            lacks = f"lacks {len(lost)} of {len(state)} prompts"
            raise RuntimeError(f"step {step}: the saved queue {lacks}")
        self._prompts = {uid: Prompt(*prompt) for uid, prompt in state.items()}
