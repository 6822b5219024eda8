"""What a step of replay does to verl's TransferQueue: each function one round of reading, computing and writing back.

The trainer says when (:mod:`exgrpo.mix_trainer_experience`); these functions say what. They own no state: the pool, the
generator and the worker group are handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.config import MissingLogProbs
from exgrpo.experience.experience_helpers import replayed_row, replayed_tag, rollout_groups, split_key
from exgrpo.experience.trajectory import RolloutGroup, Trajectory


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


def observed_groups(
    batch: KVBatchMeta, replayed: Mapping[str, Trajectory], step: int, vocab_size: int
) -> list[RolloutGroup]:
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
        vocab_size=vocab_size,
    )


def fresh_positions(batch: KVBatchMeta) -> list[int]:
    """Positions of the rows that this step generated: neither replayed nor padding."""
    return [i for i, tag in enumerate(batch.tags) if not tag.get("is_replayed") and not tag.get("is_padding")]


def fresh_debug_metrics(batch: KVBatchMeta) -> dict[str, float]:
    """verl's comparison of rollout and actor log-probs, of fresh rows only: a replayed row has another author."""
    keys = [batch.keys[i] for i in fresh_positions(batch)]
    fields = ["responses", "response_mask", "rollout_log_probs", "old_log_probs"]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    metrics: dict[str, float] = calculate_debug_metrics(DataProto(batch=data.to_padded_tensor()))
    return metrics


def log_ratios(batch: KVBatchMeta, replayed: Mapping[str, Trajectory]) -> npt.NDArray[np.float32]:
    """log pi_now - log pi_past of all replayed tokens whose log-probs were recorded, [tokens], before any update."""
    keys = [key for key in _replayed_keys(batch) if replayed[split_key(key)[0]].has_log_probs]
    if not keys:
        return np.empty(0, np.float32)
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["old_log_probs"])
    rows = zip(keys, data["old_log_probs"].unbind(), strict=True)
    return np.concatenate([now.float().numpy() - replayed[split_key(key)[0]].log_probs for key, now in rows])


def put_recorded_log_probs(batch: KVBatchMeta, replayed: Mapping[str, Trajectory], missing: MissingLogProbs) -> None:
    """Replayed rows get the log-probs of the policy that wrote them as ``old_log_probs`` (pi_past of equation 4).

    Those that nobody recorded are 0 where ``missing`` is ``one``; where it is ``current``, this step's stay.
    """
    chosen = {key: replayed[split_key(key)[0]] for key in _replayed_keys(batch)}
    if missing == "current":
        chosen = {key: trajectory for key, trajectory in chosen.items() if trajectory.has_log_probs}
    if not chosen:
        return
    recorded = [torch.from_numpy(np.nan_to_num(trajectory.log_probs)) for trajectory in chosen.values()]
    fields = TensorDict({"old_log_probs": torch.nested.as_nested_tensor(recorded, layout=torch.jagged)}, len(chosen))
    tq.kv_batch_put(keys=list(chosen), partition_id=batch.partition_id, fields=fields)


def _replayed_keys(batch: KVBatchMeta) -> list[str]:
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_replayed")]


def put_phase(batch: KVBatchMeta, fresh: float, replayed: float) -> KVBatchMeta:
    """Write the phase code of every token of every row, padding included: a field some rows lack is never read."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    codes = [
        torch.full((len(mask),), replayed if tag.get("is_replayed") else fresh, dtype=torch.float32)
        for mask, tag in zip(data["response_mask"].unbind(), batch.tags, strict=True)
    ]
    fields = TensorDict({"rollout_is_weights": torch.nested.as_nested_tensor(codes, layout=torch.jagged)}, len(codes))
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
