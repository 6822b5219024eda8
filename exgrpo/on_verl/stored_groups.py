"""Whole past groups as rows of verl's batch (trainer.exp_unit=group)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from exgrpo.experience.experience_helpers import mean_square
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl import queue
from exgrpo.on_verl.complete import replayed_tag, stored_row, with_rows
from exgrpo.on_verl.correct import Current, log_ratios
from exgrpo.on_verl.observe import judged_groups
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
    blocks = []
    for group in groups:
        assert group.stored is not None
        prompt = _prompt(group.stored)
        blocks.append([(group, rollout, prompt) for rollout in group.rollouts])
    return join_blocks(batch, blocks, row_of)


def join_blocks(
    batch: Batch,
    blocks: Sequence[Sequence[tuple[ReplayedGroup, Trajectory, torch.Tensor]]],
    row_of: Callable[[str], Mapping[str, Any]],
) -> Batch:
    """As `join`; of each block, the rows of one uid: whose record, trajectory, prompt int64 [P]."""
    if not blocks:
        return batch
    fresh = list(dict.fromkeys(split_key(key)[0] for key in batch.keys))
    (template,) = queue.read(batch.keys[:1], batch.partition_id).unbind(0)
    keys, fields, tags = [], [], []
    for position, block in enumerate(blocks):
        uid = f"{fresh[position * len(fresh) // len(blocks)]}s{position:05d}"
        for session, (group, rollout, prompt) in enumerate(block):
            key, of_data = f"{uid}_{session}_0", row_of(group.question)
            group.uid, group.rows[key] = uid, rollout
            keys.append(key)
            named = {"uid": uid, "session": session, "prompt": prompt}
            fields.append(stored_row(template, of_data, trajectory=rollout, **named))
            tags.append(replayed_tag(batch.tags[0], rollout, len(prompt)))
    return in_order(with_rows(batch, keys, fields, tags))


def in_place_of_dead(
    batch: Batch,
    replay: ExperienceReplay,
    elsewhere: Collection[str],
    admit: Callable[[Sequence[StoredGroup]], list[ReplayedGroup]],
) -> tuple[Batch, list[ReplayedGroup], list[RolloutGroup]]:
    """The batch without fresh groups of equal rewards, the past groups in their place
    (`exp_place=dead`), and what the pool learns of those that are gone, from their rewards.

    Args:
        elsewhere: other questions of the step.
        admit: those of past groups that may enter.
    """
    judged = judged_groups(batch.keys, batch.partition_id, replay.config.exp_success_threshold)
    rewards = {group.question: group.rewards for group in judged.values()}
    stand_ins = replay.stand_ins(rewards, elsewhere)
    past = admit([*stand_ins.values()])
    # one that is not admitted leaves a dead group where it is
    replaced = [*stand_ins][: len(past)]
    dead = {uid: group for uid, group in judged.items() if group.question in replaced}
    gone = [key for key in batch.keys if split_key(key)[0] in dead]
    return queue.without(batch, gone), past, [*dead.values()]


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
