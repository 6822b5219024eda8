"""What a step of replay does to verl's TransferQueue: each function one round of reading, computing and writing back.

The trainer says when (:mod:`exgrpo.mix_trainer_experience`); these functions say what. They own no state: the pool, the
generator and the worker group are handed in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.config import MissingLogProbs
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl.rows import replayed_row, replayed_tag, rollout_groups, split_key


def in_order(batch: KVBatchMeta) -> KVBatchMeta:
    """The batch in the order of its prompts and sessions, whatever order generation finished in."""
    batch.reorder(sorted(range(len(batch)), key=lambda i: split_key(batch.keys[i])))
    return batch


class Sibling(NamedTuple):
    """A fresh rollout of a replayed question: its row and its tag, as they are in the queue."""

    row: Mapping[str, Any]
    tag: dict[str, Any]


def first_siblings(batch: KVBatchMeta, uids: Collection[str]) -> dict[str, Sibling]:
    """uid -> the first of its fresh rows; a uid all of whose rollouts failed is absent."""
    found: dict[str, int] = {}
    for position, key in enumerate(batch.keys):
        uid = split_key(key)[0]
        if uid in uids:
            found.setdefault(uid, position)
    if not found:
        return {}
    keys = [batch.keys[position] for position in found.values()]
    rows = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id).unbind(0)  # each row[i] would index every field
    return {uid: Sibling(row, batch.tags[found[uid]]) for uid, row in zip(found, rows, strict=True)}


def inject(
    batch: KVBatchMeta, siblings: Mapping[str, Sibling], chosen: Mapping[str, Trajectory], session: int
) -> KVBatchMeta:
    """The batch with one replayed row for each uid of ``chosen``, as session ``session`` of its group."""
    if not chosen:
        return batch
    fields = [replayed_row(siblings[uid].row, trajectory, session) for uid, trajectory in chosen.items()]
    keys = [f"{uid}_{session}_0" for uid in chosen]
    tags = [replayed_tag(siblings[uid].tag, trajectory) for uid, trajectory in chosen.items()]
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(fields), tags=tags)
    return KVBatchMeta(
        keys=batch.keys + keys,
        tags=batch.tags + tags,
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )


def scored_rows(batch: KVBatchMeta, rollout_log_probs: bool) -> TensorDict:
    """What replay looks at in a step's rows after the log-prob pass, in one read (a call costs 10 ms)."""
    fields = ["question_id", "responses", "response_mask", "rm_scores", "old_log_probs", "entropy"]
    fields += ["rollout_log_probs"] if rollout_log_probs else []
    return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)


def observed_groups(
    batch: KVBatchMeta, rows: TensorDict, replayed: Collection[str], step: int, vocab_size: int
) -> list[RolloutGroup]:
    """The step's groups as the pool is told of them: fresh rows alone, with this step's log-probs and entropies."""
    fresh = fresh_positions(batch)
    questions = list(rows["question_id"])
    tensors = {name: rows[name].unbind() for name in ("rm_scores", "responses", "old_log_probs", "entropy")}
    return rollout_groups(
        uids=[split_key(batch.keys[i])[0] for i in fresh],
        questions=[questions[i] for i in fresh],
        rewards=[float(tensors["rm_scores"][i].sum()) for i in fresh],
        tokens=[tensors["responses"][i].numpy() for i in fresh],
        log_probs=[tensors["old_log_probs"][i].float().numpy() for i in fresh],
        entropies=[tensors["entropy"][i].float().numpy() for i in fresh],
        replayed=frozenset(replayed),
        step=step,
        vocab_size=vocab_size,
    )


def fresh_positions(batch: KVBatchMeta) -> list[int]:
    """Positions of the rows that this step generated: neither replayed nor padding."""
    return [i for i, tag in enumerate(batch.tags) if not tag.get("is_replayed") and not tag.get("is_padding")]


def fresh_debug_metrics(batch: KVBatchMeta, rows: TensorDict) -> dict[str, float]:
    """verl's comparison of rollout and actor log-probs, of fresh rows only: a replayed row has another author."""
    padded = rows.select("responses", "response_mask", "rollout_log_probs", "old_log_probs").to_padded_tensor()
    metrics: dict[str, float] = calculate_debug_metrics(DataProto(batch=padded[fresh_positions(batch)]))
    return metrics


def log_ratios(batch: KVBatchMeta, rows: TensorDict, replayed: Mapping[str, Trajectory]) -> npt.NDArray[np.float32]:
    """log pi_now - log pi_past of all replayed tokens whose log-probs were recorded, [tokens], before any update."""
    now = rows["old_log_probs"].unbind()
    chosen = _replayed_rows(batch, replayed)
    logs = [now[i].float().numpy() - one.log_probs for i, one in chosen.items() if one.has_log_probs]
    return np.concatenate(logs) if logs else np.empty(0, np.float32)


def put_recorded_log_probs(batch: KVBatchMeta, replayed: Mapping[str, Trajectory], missing: MissingLogProbs) -> None:
    """Replayed rows get the log-probs of the policy that wrote them as ``old_log_probs`` (pi_past of equation 4).

    Those that nobody recorded are 0 where ``missing`` is ``one``; where it is ``current``, this step's stay.
    """
    chosen = _replayed_rows(batch, replayed)
    chosen = {i: one for i, one in chosen.items() if one.has_log_probs or missing == "one"}
    if not chosen:
        return
    recorded = [torch.from_numpy(np.nan_to_num(trajectory.log_probs)) for trajectory in chosen.values()]
    fields = TensorDict({"old_log_probs": torch.nested.as_nested_tensor(recorded, layout=torch.jagged)}, len(chosen))
    tq.kv_batch_put(keys=[batch.keys[i] for i in chosen], partition_id=batch.partition_id, fields=fields)


def put_phase(batch: KVBatchMeta, rows: TensorDict, fresh: float, replayed: float) -> KVBatchMeta:
    """Write the phase code of every token of every row, padding included: a field some rows lack is never read."""
    codes = [
        torch.full((len(mask),), replayed if tag.get("is_replayed") else fresh, dtype=torch.float32)
        for mask, tag in zip(rows["response_mask"].unbind(), batch.tags, strict=True)
    ]
    fields = TensorDict({"rollout_is_weights": torch.nested.as_nested_tensor(codes, layout=torch.jagged)}, len(codes))
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


def _replayed_rows(batch: KVBatchMeta, replayed: Mapping[str, Trajectory]) -> dict[int, Trajectory]:
    """Position in the batch -> the trajectory that stands there."""
    marked = [i for i, tag in enumerate(batch.tags) if tag.get("is_replayed") and not tag.get("is_padding")]
    return {i: replayed[split_key(batch.keys[i])[0]] for i in marked}
