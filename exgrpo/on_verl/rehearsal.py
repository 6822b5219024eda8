"""Rehearsal (trainer.exp_place=beside): K stored successes, each of a question of its own, are rows
of one uid beside the fresh groups; the loss takes their likelihood alone.

Their rewards are no group's: whatever advantage verl gives them is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.replayed_group import Odds, ReplayedGroup
from exgrpo.experience.trajectory_selector import Choice, Scorer
from exgrpo.on_verl import queue, stored_groups
from exgrpo.on_verl.queue import Batch
from exgrpo.prompts import render


class Rehearsal:
    """The successes that a step rehearses, from their draw to the batch.

    Args:
        size: K, of them in a place.
        row_of: question -> its row of the data set.
        tokenizer, dataset: by which prompts are rendered.

    Attributes:
        waiting: questions that were drawn and are not in the batch yet, with the odds of each.
    """

    def __init__(
        self, size: int, row_of: Callable[[str], Mapping[str, Any]], tokenizer: Any, dataset: Any
    ) -> None:
        self._size, self._row_of = size, row_of
        self._tokenizer, self._dataset = tokenizer, dataset
        self.waiting: dict[str, Odds] = {}

    @property
    def places(self) -> int:
        """How many places of the step the waiting ones take."""
        return len(self.waiting) // self._size

    def prompt(self, question: str) -> torch.Tensor:
        """The prompt's tokens, int64 [P], as verl's agent loop renders them."""
        messages, options = self._row_of(question)["raw_prompt"], self._dataset
        text = render(self._tokenizer, messages, **options.apply_chat_template_kwargs)
        return torch.tensor(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def choose(
        self,
        replay: ExperienceReplay,
        places: int,
        scorer: Callable[[Mapping[str, torch.Tensor]], Scorer],
    ) -> Choice:
        """The successes of so many places; they wait no more.

        Args:
            scorer: made for questions with these prompts.
        """
        questions = [*self.waiting][: places * self._size]
        entering = {question: self.waiting.pop(question) for question in questions}
        prompts = {question: self.prompt(question) for question in questions}
        return replay.rehearse(entering, scorer(prompts))

    def join(self, batch: Batch, groups: Sequence[ReplayedGroup]) -> Batch:
        """The batch with these successes, K of them under each uid; uids and rows are written into
        the records.

        Raises:
            RuntimeError: the agent loop asks with another prompt than is rendered here.
        """
        if not groups:
            return batch
        rows = queue.read(batch.keys[:1], batch.partition_id, ["question_id", "prompts"])
        (asked,), question = rows["prompts"].unbind(), next(iter(rows["question_id"]))
        if asked.tolist() != self.prompt(question).tolist():
            raise RuntimeError(
                f"trainer.exp_place=beside: the prompt of question {question!r} is not the chat "
                "template's; a success would be rehearsed after another prompt than is asked"
            )
        of_all = [(group, group.rollouts[0], self.prompt(group.question)) for group in groups]
        blocks = [of_all[at : at + self._size] for at in range(0, len(of_all), self._size)]
        return stored_groups.join_blocks(batch, blocks, self._row_of)
