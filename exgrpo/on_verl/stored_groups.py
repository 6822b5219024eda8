"""Whole past groups as rows of verl's batch (trainer.exp_unit=group)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from exgrpo.experience.experience_helpers import mean_square
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.on_verl import queue
from exgrpo.on_verl.complete import replayed_tag, stored_row, with_rows
from exgrpo.on_verl.correct import Current, log_ratios
from exgrpo.on_verl.queue import Batch, in_order, split_key


def prompts_of(groups: Iterable[StoredGroup]) -> dict[str, torch.Tensor]:
    """Question of a group -> the tokens of its prompt, int64 [P]."""
    return {group.question: _prompt(group) for group in groups}


def join(
    batch: Batch, groups: Sequence[ReplayedGroup], row_of: Callable[[str], Mapping[str, Any]]
) -> Batch:
    """The batch with these past groups, each under a uid of its own; uids and rows are written into
    the records.

    They are spread evenly among the fresh groups, so that each mini-batch has a similar mix.

    Args:
        batch: in the order of its prompts; at least one row.
    """
    if not groups:
        return batch
    fresh = list(dict.fromkeys(split_key(key)[0] for key in batch.keys))
    (template,) = queue.read(batch.keys[:1], batch.partition_id).unbind(0)
    keys, fields, tags = [], [], []
    for position, group in enumerate(groups):
        assert group.stored is not None
        prompt, of_data = _prompt(group.stored), row_of(group.question)
        place = fresh[position * len(fresh) // len(groups)]
        group.uid = f"{place}s{position:05d}"
        for session, rollout in enumerate(group.rollouts):
            key = f"{group.uid}_{session}_0"
            group.rows[key] = rollout
            keys.append(key)
            named = {"uid": group.uid, "session": session, "prompt": prompt}
            fields.append(stored_row(template, of_data, trajectory=rollout, **named))
            tags.append(replayed_tag(batch.tags[0], rollout, len(prompt)))
    return in_order(with_rows(batch, keys, fields, tags))


def metrics(groups: Iterable[ReplayedGroup], current: Current, step: int) -> dict[str, float]:
    """Of those of a step's groups that are past ones, before the updates that they are in."""
    past = [group for group in groups if group.stored is not None]
    ages = [step - group.stored.step for group in past if group.stored is not None]
    drifts = []
    for group in past:
        ratios = log_ratios(group.rows, {key: current[key] for key in group.rows})
        drifts.append(mean_square(np.concatenate([*ratios.values()])))
    tokens = sum(len(rollout) for group in past for rollout in group.rollouts)
    return {
        "stored_groups": float(len(past)),
        "stored_group_age": float(np.mean(ages or [0])),
        "stored_group_drift": float(np.mean(drifts or [0.0])),
        "stored_group_tokens": float(tokens),
    }


def _prompt(group: StoredGroup) -> torch.Tensor:
    # the trainer stores it, and drops groups without one when it resumes
    assert group.prompt is not None
    return torch.from_numpy(group.prompt.astype(np.int64))
