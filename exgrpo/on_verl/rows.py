"""Rows of verl's TransferQueue to the pool's types and back. No queue is touched here."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from verl.utils.model import compute_position_id_with_mask

from exgrpo.experience.trajectory import RolloutGroup, Trajectory

logger = logging.getLogger(__name__)


def split_key(key: str) -> tuple[str, int, int]:
    """``{uid}_{session}_{output}`` of a rollout's key, as verl's agent loop writes it."""
    uid, session, output = key.rsplit("_", 2)
    return uid, int(session), int(output)


def sequence_fields(prompt: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensor fields of a row whose response is ``tokens``: int64 [P], [T] and [P+T]."""
    input_ids = torch.cat([prompt, tokens])
    ones = torch.ones_like(tokens)
    return {
        "prompts": prompt,
        "responses": tokens,
        "response_mask": ones,
        "loss_mask": ones,
        "input_ids": input_ids,
        "position_ids": compute_position_id_with_mask(torch.ones_like(input_ids).unsqueeze(0)).squeeze(0),
    }


def candidate_row(prompt: torch.Tensor, trajectory: Trajectory) -> dict[str, torch.Tensor]:
    """What a log-prob pass needs of a candidate: the tokens, no reward and no bookkeeping."""
    return sequence_fields(prompt, torch.from_numpy(trajectory.tokens.astype(np.int64)))


def replayed_row(sibling: Mapping[str, Any], trajectory: Trajectory, session: int) -> dict[str, Any]:
    """The row that puts ``trajectory`` into its question's group: a fresh sibling's, so that the schema cannot drift.

    Tokens and log-probs are the trajectory's, the reward is that of a success, everything else is the sibling's.
    """
    row = {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in sibling.items()
    }
    fields = sequence_fields(row["prompts"], torch.from_numpy(trajectory.tokens.astype(np.int64)))
    row.update({name: value for name, value in fields.items() if name in row})
    log_probs = torch.from_numpy(np.nan_to_num(trajectory.log_probs))
    if "rollout_log_probs" in row:
        row["rollout_log_probs"] = log_probs
    row["rm_scores"] = torch.zeros_like(log_probs)
    row["rm_scores"][-1] = 1.0
    if "session_id" in row:
        row["session_id"] = session
    return row


def replayed_tag(sibling: Mapping[str, Any], trajectory: Trajectory) -> dict[str, Any]:
    """The queue's tag of a replayed row; its staleness is that of the trajectory, by the weights that wrote it."""
    length = len(trajectory.tokens)
    tag = dict(sibling, response_len=length, seq_len=sibling["prompt_len"] + length, is_replayed=True)
    tag["min_global_steps"] = tag["max_global_steps"] = trajectory.step - 1
    return tag


def rollout_groups(
    uids: Sequence[str],
    questions: Sequence[str],
    rewards: Sequence[float],
    tokens: Sequence[np.ndarray],
    log_probs: Sequence[np.ndarray],
    entropies: Sequence[np.ndarray],
    replayed: frozenset[str],
    step: int,
    vocab_size: int,
) -> list[RolloutGroup]:
    """One group a question, of the step's fresh rows in their order.

    A success whose tokens and log-probs cannot belong together is refused, with a warning: it counts for difficulty but
    is not kept.

    Args:
        uids, questions, rewards: [R] per fresh row: its prompt, its question, its reward (above 0.5 is a success).
        tokens, log_probs, entropies: [R][T] per fresh row: as sampled, natural log, nats.
        replayed: uids whose group holds a replayed row beside the fresh ones.
        step: the global step that generated the rows.
        vocab_size: tokens are 0..vocab_size-1.
    """
    rows_of: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        rows_of.setdefault(uid, []).append(row)
    groups = []
    for uid, rows in rows_of.items():
        solved = [row for row in rows if rewards[row] > 0.5]
        kept = []
        for row in solved:
            try:
                entropy = float(np.mean(entropies[row]))
                success = Trajectory(tokens[row], log_probs[row], step=step, entropy=entropy)
                success.check_vocabulary(vocab_size)
                kept.append(success)
            except ValueError as error:
                logger.warning("step %d, question %s: a success is not kept: %s", step, questions[row], error)
        group = RolloutGroup(
            questions[rows[0]], len(rows), tuple(kept), replayed=int(uid in replayed), refused=len(solved) - len(kept)
        )
        groups.append(group)
    return groups
