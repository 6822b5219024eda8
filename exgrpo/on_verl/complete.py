"""Complete: past successes are scored by verl's actor, and the chosen ones join the batch as rows.

A joined row is a copy of a fresh row of its question, so that verl's schema is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from omegaconf import DictConfig
from verl.utils.model import compute_position_id_with_mask
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import Candidate, TokenScores
from exgrpo.on_verl import queue
from exgrpo.on_verl.in_flight import Prompt
from exgrpo.on_verl.queue import Batch, of_response, split_key

SCRATCH = "exgrpo_candidates"  # partition of the queue for rows that are scored and dropped


# -- scoring ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CandidateScorer:
    """verl's actor as the `Scorer` of exgrpo.experience.trajectory_selector.

    Attributes:
        prompts: question -> its prompt's tokens, int64 [P].
        compute_log_prob: the actor's method; fills ``entropy`` and ``log_probs`` of rows.
        ranks: number of data-parallel ranks that share the rows.
        micro_batch: each rank's number of rows must be a multiple of it.
    """

    prompts: Mapping[str, torch.Tensor]
    compute_log_prob: Callable[[Batch], Any]
    ranks: int
    micro_batch: int
    temperature: float

    @classmethod
    def of(
        cls, prompts: Mapping[str, torch.Tensor], workers: Any, rollout: DictConfig
    ) -> CandidateScorer:
        """The scorer of an actor's worker group, by the rollout's settings for log-probs."""
        ranks, at_a_time = data_parallel_size(workers), 1
        if not rollout.log_prob_use_dynamic_bsz:
            at_a_time = int(rollout.log_prob_micro_batch_size_per_gpu)
        return cls(prompts, workers.compute_log_prob, ranks, at_a_time, rollout.temperature)

    def __call__(self, candidates: Sequence[Candidate]) -> list[TokenScores]:
        """Score all candidates in one pass, in a queue partition that is cleared afterwards."""
        rows = [sequence_fields(self.prompts[name], trajectory) for name, trajectory in candidates]
        lengths = [len(row["input_ids"]) for row in rows]
        order = balanced_order(lengths, self.ranks, self.ranks * self.micro_batch)
        keys = [f"candidate_{i}_0" for i in range(len(order))]
        tags = [{"seq_len": lengths[position], "status": "success"} for position in order]
        fields = list_of_dict_to_tensordict([rows[position] for position in order])
        queue.write(keys, SCRATCH, fields, tags)
        extra = {"calculate_entropy": True, "compute_loss": False, "temperature": self.temperature}
        batch = Batch(keys=keys, tags=tags, partition_id=SCRATCH, extra_info=extra)
        try:
            self.compute_log_prob(batch)
            data = queue.read(keys, SCRATCH, ["entropy", "log_probs"])
        finally:
            queue.clear(keys, SCRATCH)
        columns = data["entropy"].unbind(), data["log_probs"].unbind()
        scores: dict[int, TokenScores] = {}
        for position, *scored in zip(order, *columns, strict=True):
            length = len(candidates[position][1])
            scores[position] = TokenScores(*(of_response(row, length) for row in scored))
        return [scores[position] for position in range(len(candidates))]


def data_parallel_size(workers: Any) -> int:
    """The number of data-parallel ranks of the actor's worker group."""
    if "actor" not in workers._dispatch_info:
        workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
    return int(max(workers._dispatch_info["actor"])) + 1


def balanced_order(lengths: list[int], ranks: int, multiple: int) -> list[int]:
    """Positions in ``lengths`` (tokens of each row) in an order in which the ranks, each taking its
    equal share of them, have about equal work.

    The shortest row is repeated, so that the number of rows is a multiple of ``multiple``.
    """
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    rows = [*range(len(lengths)), *[shortest] * (-len(lengths) % multiple)]
    tokens = torch.tensor([lengths[row] for row in rows], dtype=torch.int64)
    work = calculate_workload(tokens).tolist()
    shares = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
    return [rows[position] for share in shares for position in share]


# -- rows ------------------------------------------------------------------------------------------


def sequence_fields(prompt: torch.Tensor, trajectory: Trajectory) -> dict[str, torch.Tensor]:
    """The tensor fields of a row whose response is the trajectory: int64 [P], [T] and [P+T]."""
    tokens = torch.from_numpy(trajectory.tokens.astype(np.int64))
    input_ids = torch.cat([prompt, tokens])
    positions = compute_position_id_with_mask(torch.ones_like(input_ids)[None])[0]
    mask = torch.ones_like(tokens)
    if trajectory.loss_mask is not None:
        mask = torch.from_numpy(trajectory.loss_mask.astype(np.int64))
    return {
        "prompts": prompt,
        "responses": tokens,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": input_ids,
        "position_ids": positions,
    }


def replayed_row(
    sibling: Mapping[str, Any],
    trajectory: Trajectory,
    session: int,
    prompt: torch.Tensor | None = None,
) -> dict[str, Any]:
    """The row that adds ``trajectory`` to its question's group: tokens, log-probs, mask and reward
    are the trajectory's, everything else a fresh sibling's, but for another ``prompt``, int64 [P].
    """
    row = {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in sibling.items()
    }
    fields = sequence_fields(row["prompts"] if prompt is None else prompt, trajectory)
    row.update({name: value for name, value in fields.items() if name in row})
    log_probs = torch.from_numpy(np.nan_to_num(trajectory.log_probs))
    if "rollout_log_probs" in row:
        row["rollout_log_probs"] = log_probs
    row["rm_scores"] = torch.zeros_like(log_probs)
    row["rm_scores"][-1] = trajectory.reward
    if "session_id" in row:
        row["session_id"] = session
    if "num_turns" in row:
        turns, named = row["num_turns"], number_of_turns(trajectory)
        is_tensor = isinstance(turns, torch.Tensor)
        row["num_turns"] = torch.full_like(turns, named) if is_tensor else named
    return row


def stored_row(
    template: Mapping[str, Any],
    of_data: Mapping[str, Any],
    uid: str,
    trajectory: Trajectory,
    session: int,
    prompt: torch.Tensor,
) -> dict[str, Any]:
    """A row of a past group: the columns of any fresh row, with the values of its own question.

    Args:
        template: a fresh row; what it says of its own rollout's reward is left out.
        of_data: the data set's row of the question.
        prompt: int64 [P], as recorded with the group.
    """
    row = replayed_row(template, trajectory, session, prompt)
    values = {name: value for name, value in of_data.items() if not torch.is_tensor(value)}
    row.update({name: value for name, value in values.items() if name in row})
    row["uid"] = uid
    extra = getattr(row.get("extra_fields"), "data", None)  # of a TensorDict's row
    if isinstance(extra, dict):
        row["extra_fields"] = {key: extra[key] for key in extra if key != "reward_extra_info"}
    return row


def number_of_turns(trajectory: Trajectory) -> int:
    """Turns as verl counts them: the prompt, then each run of the policy's or of other tokens."""
    if trajectory.loss_mask is None:
        return 2
    return 2 + int(np.count_nonzero(np.diff(trajectory.loss_mask)))


def replayed_tag(
    sibling: Mapping[str, Any], trajectory: Trajectory, prompt_length: int | None = None
) -> dict[str, Any]:
    """The queue's tag of a replayed row; it is as stale as the weights that generated it."""
    length = len(trajectory.tokens)
    before = sibling["prompt_len"] if prompt_length is None else prompt_length
    lengths = {"prompt_len": before, "response_len": length, "seq_len": before + length}
    tag = {**sibling, **lengths, "is_replayed": True}
    tag["min_global_steps"] = tag["max_global_steps"] = trajectory.step - 1
    return tag


# -- joining ---------------------------------------------------------------------------------------


def refuse_several_outputs(keys: Sequence[str]) -> None:
    """RuntimeError if an agent loop returned a list of outputs: a trajectory is one row."""
    if several := [key for key in keys if split_key(key)[2]]:
        returned = "the agent loop returned several outputs of one session"
        raise RuntimeError(f"rollout {several[0]}: {returned}: must be one")


class Sibling(NamedTuple):
    """A fresh rollout of a replayed question: uid of its group, its row and its tag."""

    uid: str
    row: Mapping[str, Any]
    tag: dict[str, Any]


def to_complete(arrived: Mapping[str, Prompt], pool: ExperiencePool) -> dict[str, str]:
    """uid -> question of the groups of the batch that a past success is to join."""
    # one may have left the pool since it was drawn: its group stays one row short
    return {
        uid: prompt.question
        for uid, prompt in arrived.items()
        if prompt.is_replayed and prompt.question in pool
    }


def first_siblings(batch: Batch, questions: Mapping[str, str]) -> dict[str, Sibling]:
    """Question -> its first fresh row, in the order of `questions` (uid -> question); one of which
    no rollout came back is absent.
    """
    first: dict[str, int] = {}  # uid -> position in the batch
    for position, key in enumerate(batch.keys):
        first.setdefault(split_key(key)[0], position)
    positions = {uid: first[uid] for uid in questions if uid in first}
    if not positions:
        return {}
    keys = [batch.keys[position] for position in positions.values()]
    rows = queue.read(keys, batch.partition_id).unbind(0)  # rows[i] would index every field
    return {
        questions[uid]: Sibling(uid, row, batch.tags[position])
        for (uid, position), row in zip(positions.items(), rows, strict=True)
    }


def inject(
    batch: Batch, groups: Sequence[ReplayedGroup], siblings: Mapping[str, Sibling], session: int
) -> Batch:
    """The batch with a replayed row for each group, as this session; records learn their key."""
    if not groups:
        return batch
    keys: list[str] = []
    fields, tags = [], []
    for group in groups:
        sibling, (trajectory,) = siblings[group.question], group.rollouts
        group.rows = {f"{group.uid}_{session}_0": trajectory}
        keys += group.rows
        fields.append(replayed_row(sibling.row, trajectory, session))
        tags.append(replayed_tag(sibling.tag, trajectory))
    return with_rows(batch, keys, fields, tags)


def with_rows(
    batch: Batch,
    keys: Sequence[str],
    fields: Sequence[dict[str, Any]],
    tags: Sequence[dict[str, Any]],
) -> Batch:
    """The batch with these rows at its end."""
    queue.write(keys, batch.partition_id, list_of_dict_to_tensordict(list(fields)), tags)
    return replace(batch, keys=[*batch.keys, *keys], tags=[*batch.tags, *tags])
