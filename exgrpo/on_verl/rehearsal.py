"""Rehearsal (trainer.exp_place=beside): K stored successes, each of a question of its own, are rows
of one uid beside the fresh groups; the loss takes their likelihood alone.

Their rewards are no group's: whatever advantage verl gives them is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.on_verl import queue, stored_groups
from exgrpo.on_verl.queue import Batch
from exgrpo.prompts import render

Row = Mapping[str, Any]


def prompt_of(row: Row, tokenizer: Any, dataset: Any) -> torch.Tensor:
    """The prompt of a row of the data set, int64 [P], as verl's agent loop renders it."""
    text = render(tokenizer, row["raw_prompt"], **dataset.apply_chat_template_kwargs)
    return torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])


def join(
    batch: Batch,
    groups: Sequence[ReplayedGroup],
    size: int,
    row_of: Callable[[str], Row],
    prompt: Callable[[str], torch.Tensor],
) -> Batch:
    """The batch with these successes, `size` of them under each uid; uids and rows are written into
    the records.

    Args:
        prompt: question -> its prompt's tokens.

    Raises:
        RuntimeError: the agent loop asks with another prompt than `prompt` renders.
    """
    if not groups:
        return batch
    rows = queue.read(batch.keys[:1], batch.partition_id, ["question_id", "prompts"])
    (asked,), question = rows["prompts"].unbind(), next(iter(rows["question_id"]))
    if asked.tolist() != prompt(question).tolist():
        raise RuntimeError(
            f"trainer.exp_place=beside: the prompt of question {question!r} is not the chat "
            "template's; a stored success would be rehearsed after another prompt than is asked"
        )
    of_all = [(group, group.rollouts[0], prompt(group.question)) for group in groups]
    blocks = [of_all[at : at + size] for at in range(0, len(of_all), size)]
    return stored_groups.join_blocks(batch, blocks, row_of)
