"""What a step of replay does to verl's TransferQueue: each function reads, computes and writes back
once.

The trainer decides when to call them (:mod:`exgrpo.mix_trainer_experience`). They own no state:
everything they use is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.replay_log import ReplayedGroup
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import queue
from exgrpo.on_verl.candidate_scoring import of_response
from exgrpo.on_verl.phase import Codes, corrected
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.rows import FreshRow, replayed_row, replayed_tag, split_key

PHASE = "rollout_is_weights"  # verl's field that carries exgrpo.on_verl.phase to the loss


def in_order(batch: Batch) -> Batch:
    """The batch in the order of its prompts and sessions, regardless of the order in which
    generation finished.
    """
    batch.reorder(sorted(range(len(batch)), key=lambda i: split_key(batch.keys[i])))
    return batch


class Sibling(NamedTuple):
    """A fresh rollout of a replayed question: uid of its group, its row and its tag in the
    queue.
    """

    uid: str
    row: Mapping[str, Any]
    tag: dict[str, Any]


def first_siblings(batch: Batch, questions: Mapping[str, str]) -> dict[str, Sibling]:
    """Question -> its first fresh row; a question whose rollouts all failed is absent.

    Args:
        questions: uid -> question, in whose order the answer is.
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
    """The batch with one replayed row for each group, as session ``session``; the records learn of
    it.

    Args:
        siblings: by question, of all the groups.
    """
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
    return Batch(
        keys=[*batch.keys, *keys],
        tags=[*batch.tags, *tags],
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )


def scored_rows(
    batch: Batch, rollout_log_probs: bool, rules: bool = False, prompts: bool = False
) -> TensorDict:
    """The fields of a step's fresh rows that replay needs after the log-prob pass, in one read.

    Args:
        rules: also what the reward function says of each row besides its score.
        prompts: also the tokens of each row's prompt.
    """
    fields = ["question_id", "responses", "response_mask", "rm_scores", "old_log_probs", "entropy"]
    more = {"rollout_log_probs": rollout_log_probs, "extra_fields": rules, "prompts": prompts}
    fields += [name for name, is_read in more.items() if is_read]
    return queue.read([batch.keys[i] for i in fresh_positions(batch)], batch.partition_id, fields)


def fresh_rows(batch: Batch, rows: TensorDict) -> list[FreshRow]:
    """What `scored_rows` has read, in the form from which the pool's groups are made."""
    fields = ("question_id", "rm_scores", "responses", "old_log_probs", "entropy", "response_mask")
    columns = [
        list(rows[name]) if name == "question_id" else rows[name].unbind() for name in fields
    ]
    keys = [batch.keys[i] for i in fresh_positions(batch)]
    extras = list(rows["extra_fields"]) if "extra_fields" in rows else [None] * len(keys)
    prompts = rows["prompts"].unbind() if "prompts" in rows else [None] * len(keys)
    return [
        FreshRow(
            uid=split_key(key)[0],
            question=question,
            reward=float(scores.sum()),
            tokens=tokens.numpy(),
            log_probs=log_probs.float().numpy(),
            entropies=entropies.float().numpy(),
            loss_mask=mask.numpy(),
            rule=_rule(extra),
            prompt=None if prompt is None else prompt.numpy().astype(np.int32),
        )
        for key, extra, prompt, question, scores, tokens, log_probs, entropies, mask in zip(
            keys, extras, prompts, *columns, strict=True
        )
    ]


def _rule(extra: Any) -> str:
    """The rule that the reward function names in its result; empty if it names none."""
    info = extra.get("reward_extra_info") if isinstance(extra, Mapping) else None
    return str((info or {}).get("rule") or "")


def fresh_positions(batch: Batch) -> list[int]:
    """Positions of the rows that this step generated: neither replayed nor padding."""
    return [
        i
        for i, tag in enumerate(batch.tags)
        if not tag.get("is_replayed") and not tag.get("is_padding")
    ]


def staleness(batch: Batch, step: int) -> dict[str, float]:
    """By how many updates the weights that finished a fresh rollout are older than this step's:
    mean and maximum.
    """
    ages = [step - 1 - batch.tags[i]["max_global_steps"] for i in fresh_positions(batch)] or [0]
    return {"fresh_staleness": float(np.mean(ages)), "fresh_staleness_max": float(max(ages))}


def debug_metrics(rows: TensorDict) -> dict[str, float]:
    """verl's comparison of rollout and actor log-probs, for fresh rows only: other policies wrote
    the replayed ones.
    """
    padded = rows.select(
        "responses", "response_mask", "rollout_log_probs", "old_log_probs"
    ).to_padded_tensor()
    metrics: dict[str, float] = calculate_debug_metrics(DataProto(batch=padded))
    return metrics


def current_log_probs(
    batch: Batch, past: Mapping[str, Trajectory]
) -> dict[str, npt.NDArray[np.float32]]:
    """Key of a replayed row -> its log-probs under the current policy, [T], as the actor's pass
    wrote them.

    In the order of the batch; those that are not in it are absent.
    """
    keys = [batch.keys[i] for i in _replayed_positions(batch, past)]
    if not keys:
        return {}
    passed = queue.read(keys, batch.partition_id, ["log_probs"])["log_probs"].unbind()
    return {key: of_response(row, len(past[key])) for key, row in zip(keys, passed, strict=True)}


def mark(batch: Batch, codes: Codes) -> None:
    """Write the phase code of every token for the loss, padding included: a field that some rows
    lack is never read.
    """
    phases = [
        torch.full(
            (tag["response_len"],), codes.replayed if tag.get("is_replayed") else codes.fresh
        )
        for tag in batch.tags
    ]
    _put(batch, range(len(batch)), {PHASE: phases})


def put_recorded(batch: Batch, past: Mapping[str, Trajectory], missing: str | None) -> None:
    """Make the ``old_log_probs`` of replayed rows those of the policy that generated them: pi_past
    of equation 4.

    Args:
        past: key of a replayed row -> its trajectory.
        missing: what a trajectory without recorded log-probs gets: with ``current`` this step's,
            with ``one`` zeros.
            None: all rows keep this step's.
    """
    rows = {
        i: torch.from_numpy(np.nan_to_num(past[batch.keys[i]].log_probs))
        for i in _replayed_positions(batch, past)
        if past[batch.keys[i]].has_log_probs or missing == "one"
    }
    if rows and missing is not None:
        _put(batch, rows, {"old_log_probs": list(rows.values())})


def exempt_replayed_rows(batch: Batch, past: Mapping[str, Trajectory]) -> None:
    """Give replayed rows equal rollout and old log-probs: rollout correction then leaves them as
    they are.
    """
    rows = _replayed_positions(batch, past)
    if rows:
        old = queue.read([batch.keys[i] for i in rows], batch.partition_id, ["old_log_probs"])[
            "old_log_probs"
        ]
        _put(batch, rows, {"rollout_log_probs": old.unbind()})


def add_correction(batch: Batch, phase: Codes) -> Batch:
    """Rollout correction has put its weights into the channel of the phase: both in one code."""
    weights = queue.read(batch.keys, batch.partition_id, [PHASE])[PHASE].unbind()
    codes = [
        corrected(
            torch.full_like(weight, phase.replayed if tag.get("is_replayed") else phase.fresh),
            weight,
        )
        for weight, tag in zip(weights, batch.tags, strict=True)
    ]
    return _put(batch, range(len(batch)), {PHASE: codes})


def _put(
    batch: Batch, positions: Iterable[int], fields: Mapping[str, Sequence[torch.Tensor]]
) -> Batch:
    keys = [batch.keys[i] for i in positions]
    nested = {
        name: torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
        for name, rows in fields.items()
    }
    return queue.write(keys, batch.partition_id, TensorDict(nested, len(keys)))


def _replayed_positions(batch: Batch, past: Mapping[str, Trajectory]) -> list[int]:
    """Positions in the batch of the rows in `past`; verl's padding is not among them."""
    return [
        i for i, key in enumerate(batch.keys) if key in past and not batch.tags[i].get("is_padding")
    ]
