"""What a step of replay does to verl's TransferQueue: each function one round of reading, computing and writing back.

The trainer says when (:mod:`exgrpo.mix_trainer_experience`); these functions say what. They own no state: the pool, the
generator and the worker group are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

from exgrpo.experience.experience_helpers import (
    candidate_row,
    replayed_row,
    replayed_tag,
    rollout_groups,
    split_key,
)
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.experience.trajectory_selector import TrajectorySelector, mean_entropy, perplexity

SCRATCH = "exgrpo_candidates"  # partition of the queue for rows that are scored and dropped


@dataclass(frozen=True)
class Scored:
    """The candidates of the step's replayed questions and how the current policy sees them.

    Attributes:
        trajectories: uid -> its question's candidates, in the pool's order.
        scores: uid -> [C] mean entropy in nats or perplexity; empty where there was nothing to compare.
        rows: how many candidates went through the model.
    """

    trajectories: dict[str, tuple[Trajectory, ...]]
    scores: dict[str, np.ndarray]
    rows: int


def in_order(batch: KVBatchMeta) -> KVBatchMeta:
    """The batch in the order of its prompts and sessions, whatever order generation finished in."""
    batch.reorder(sorted(range(len(batch)), key=lambda i: split_key(batch.keys[i])))
    return batch


def first_siblings(batch: KVBatchMeta, uids: Sequence[str]) -> dict[str, int]:
    """uid -> position in the batch of its first fresh row; a uid all of whose rollouts failed is absent."""
    wanted, found = set(uids), {}
    for position, key in enumerate(batch.keys):
        uid = split_key(key)[0]
        if uid in wanted and uid not in found:
            found[uid] = position
    return found


def score_candidates(
    candidates: Mapping[str, tuple[Trajectory, ...]],
    prompts: Mapping[str, torch.Tensor],
    metric: str,
    compute_log_prob: Callable[[KVBatchMeta], Any],
    multiple: int,
    temperature: float,
) -> Scored:
    """One pass of the current policy over every candidate that has a rival (section 3.2: under pi_theta, each step).

    Args:
        candidates: uid -> candidates; a question with one is not scored, its choice is made.
        prompts: uid -> prompt tokens, int64 [P].
        metric: ``ent``, ``ppl`` or ``random``; the last scores nothing.
        compute_log_prob: the actor's; fills ``entropy`` and ``log_probs`` of the rows it is given.
        multiple: the number of rows must be a multiple of it (ranks x micro-batch); the first row is repeated.
    """
    scores: dict[str, np.ndarray] = {uid: np.empty(0) for uid in candidates}
    rivals = [] if metric == "random" else [uid for uid, found in candidates.items() if len(found) > 1]
    if not rivals:
        return Scored(dict(candidates), scores, 0)
    rows = [candidate_row(prompts[uid], trajectory) for uid in rivals for trajectory in candidates[uid]]
    padded = rows + [rows[0]] * (-len(rows) % multiple)
    keys = [f"candidate_{i}_0" for i in range(len(padded))]
    tags = [{"seq_len": len(row["input_ids"]), "status": "success"} for row in padded]
    values = _through_the_model(keys, padded, tags, metric, compute_log_prob, temperature)
    start = 0
    for uid in rivals:
        count = len(candidates[uid])
        scores[uid] = np.array(values[start : start + count])
        start += count
    return Scored(dict(candidates), scores, len(rows))


def _through_the_model(
    keys: list[str],
    rows: list[dict[str, torch.Tensor]],
    tags: list[dict[str, Any]],
    metric: str,
    compute_log_prob: Callable[[KVBatchMeta], Any],
    temperature: float,
) -> list[float]:
    """Score of each row, by way of a scratch partition that is empty again afterwards."""
    tq.kv_batch_put(keys=keys, partition_id=SCRATCH, fields=list_of_dict_to_tensordict(rows), tags=tags)
    try:
        extra = {"calculate_entropy": True, "compute_loss": False, "temperature": temperature}
        compute_log_prob(KVBatchMeta(keys=keys, tags=tags, partition_id=SCRATCH, extra_info=extra))
        column = "entropy" if metric == "ent" else "log_probs"
        data = tq.kv_batch_get(keys=keys, partition_id=SCRATCH, select_fields=[column, "response_mask"])
        per_token = response_from_nested(data[column], data["response_mask"]).unbind()
    finally:
        tq.kv_clear(keys=keys, partition_id=SCRATCH)
    score = mean_entropy if metric == "ent" else perplexity
    return [score(tokens.float().numpy()) for tokens in per_token]


def inject(
    batch: KVBatchMeta, siblings: Mapping[str, int], chosen: Mapping[str, Trajectory], session: int
) -> KVBatchMeta:
    """The batch with one replayed row for each uid of ``chosen``, as session ``session`` of its group."""
    if not chosen:
        return batch
    uids = list(chosen)
    rows = tq.kv_batch_get(keys=[batch.keys[siblings[uid]] for uid in uids], partition_id=batch.partition_id)
    fields = [replayed_row(rows[i], chosen[uid], session) for i, uid in enumerate(uids)]
    keys = [f"{uid}_{session}_0" for uid in uids]
    tags = [replayed_tag(batch.tags[siblings[uid]], chosen[uid]) for uid in uids]
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(fields), tags=tags)
    return KVBatchMeta(
        keys=batch.keys + keys,
        tags=batch.tags + tags,
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )


def choose_trajectories(
    scored: Scored, selector: TrajectorySelector, rng: np.random.Generator
) -> tuple[dict[str, Trajectory], dict[str, int]]:
    """uid -> the chosen trajectory, and its position among the candidates."""
    positions = {
        uid: 0 if len(found) == 1 else selector.choose(_scores_or_blank(scored.scores[uid], len(found)), rng)
        for uid, found in scored.trajectories.items()
    }
    return {uid: scored.trajectories[uid][position] for uid, position in positions.items()}, positions


def _scores_or_blank(scores: np.ndarray, count: int) -> np.ndarray:
    return scores if len(scores) else np.zeros(count)


def observed_groups(batch: KVBatchMeta, replayed: Mapping[str, Trajectory], step: int) -> list[RolloutGroup]:
    """The step's groups as the pool is told of them: fresh rows alone, with this step's log-probs and entropies."""
    fresh = fresh_positions(batch)
    if not fresh:
        return []
    fields = ["question_id", "responses", "rm_scores", "old_log_probs", "entropy"]
    data = tq.kv_batch_get(keys=[batch.keys[i] for i in fresh], partition_id=batch.partition_id, select_fields=fields)
    return rollout_groups(
        uids=[split_key(batch.keys[i])[0] for i in fresh],
        questions=list(data["question_id"]),
        rewards=[float(row.sum()) for row in data["rm_scores"].unbind()],
        tokens=[row.numpy() for row in data["responses"].unbind()],
        log_probs=[row.float().numpy() for row in data["old_log_probs"].unbind()],
        entropies=[row.float().numpy() for row in data["entropy"].unbind()],
        replayed=frozenset(replayed),
        step=step,
    )


def fresh_positions(batch: KVBatchMeta) -> list[int]:
    """Positions of the rows that this step generated: neither replayed nor padding."""
    return [i for i, tag in enumerate(batch.tags) if not tag.get("is_replayed") and not tag.get("is_padding")]


def put_recorded_log_probs(batch: KVBatchMeta, replayed: Mapping[str, Trajectory]) -> None:
    """Replayed rows get the log-probs of the policy that wrote them as ``old_log_probs`` (pi_past of equation 4)."""
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_replayed")]
    if not keys:
        return
    recorded = [torch.from_numpy(replayed[split_key(key)[0]].log_probs.copy()) for key in keys]
    fields = TensorDict({"old_log_probs": torch.nested.as_nested_tensor(recorded, layout=torch.jagged)}, len(keys))
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields)


def put_phase(batch: KVBatchMeta, fresh: float, replayed: float) -> KVBatchMeta:
    """Write the phase code of every token of every row, padding included: a field some rows lack is never read."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    codes = [
        torch.full((len(mask),), replayed if tag.get("is_replayed") else fresh, dtype=torch.float32)
        for mask, tag in zip(data["response_mask"].unbind(), batch.tags, strict=True)
    ]
    fields = TensorDict({"rollout_is_weights": torch.nested.as_nested_tensor(codes, layout=torch.jagged)}, len(codes))
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
