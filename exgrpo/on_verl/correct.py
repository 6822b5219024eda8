"""Correct: the loss learns which tokens are replayed, and their past log-probs.

verl's loss never sees the batch; the one channel that reaches it for each token is
``rollout_is_weights``:

    number     token                                            its loss
    negative   fresh, before mixing; -weight, -0.0 included     PPO's clipped objective
    >= 0       fresh, in a mixed step: its weight               without the clip
    infinite   of a replayed trajectory, with its own ratio     the off-policy loss

The weight is that of rollout correction, 1 without it. For a loss that asks for age and group of a
row, a replayed token has 2**40 times one more than both in one number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import DictConfig
from tensordict import TensorDict

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.trajectory import Trajectory
from exgrpo.loss_settings import LossSettings
from exgrpo.on_verl import queue
from exgrpo.on_verl.queue import Batch, of_response, split_key
from exgrpo.replay_losses import ReplayRows, takes_rows

PHASE = "rollout_is_weights"  # verl's field
ON_POLICY = -1.0  # before mixing begins: every token is fresh, with the clipped objective
FRESH = 1.0  # a fresh token of a mixed step
REPLAYED = math.inf  # a token of a replayed trajectory
NUMBERED = 2.0**40  # the least code of one that says its age and group; no weight comes near it
_AGES, _GROUPS = 2**11, 2**12  # how many of each fit into float32's 24 bits
Past = Mapping[str, Trajectory]  # key of a replayed row -> its trajectory
Rows = dict[str, npt.NDArray[np.float32]]  # key of a row -> a number of each of its tokens, [T]
Current = Mapping[str, npt.NDArray[np.float32]]  # log-probs under the current policy
# all of LossSettings but PPO's clip range, which is a setting of verl's actor
OF_POLICY_LOSS = {
    each.name: each for each in fields(LossSettings) if not each.name.startswith("cliprange_")
}


# -- phase of each token ---------------------------------------------------------------------------


def code_of(tag: Mapping[str, Any], mixed: bool) -> float:
    """The phase code of a row's tokens, from its tag and whether mixing has begun."""
    if tag.get("is_replayed"):
        return float(tag.get("replay_code", REPLAYED))
    return FRESH if mixed else ON_POLICY


def number(batch: Batch, step: int, policy_loss: Any) -> None:
    """If the loss of replayed tokens takes them, write age and group of each replayed row into its
    tag, for the codes that say them.
    """
    if not takes_rows(policy_loss.off_policy_loss):
        return
    groups: dict[str, int] = {}
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        if tag.get("is_replayed"):
            # as `replayed_tag` has it: the weights that generated it are of the step before
            age = min(max(step - 1 - tag["max_global_steps"], 0), _AGES - 1)
            group = groups.setdefault(split_key(key)[0], len(groups)) % _GROUPS
            tag["replay_code"] = NUMBERED * (1 + age * _GROUPS + group)


def is_replayed(phase: torch.Tensor) -> torch.Tensor:
    """Which tokens are replayed, bool [B, T], from their codes."""
    return phase >= NUMBERED


def rows_of(phase: torch.Tensor) -> ReplayRows:
    """What `number` has written, from the codes [B, T]."""
    highest = torch.where(phase.isfinite(), phase, 0.0).amax(-1, keepdim=True)
    numbers = (highest / NUMBERED - 1).clamp(min=0).long()
    return ReplayRows(numbers // _GROUPS, numbers % _GROUPS)


def corrects(config: DictConfig) -> bool:
    """Whether verl computes weights of rollout correction, or rejects tokens by them."""
    correction = config.algorithm.rollout_correction or {}  # null: off
    return any(correction.get(name) is not None for name in ("rollout_is", "rollout_rs"))


def corrected(phase: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The codes [T], those of fresh tokens scaled by their weights [T] of rollout correction."""
    return torch.where(is_replayed(phase), phase, torch.copysign(weights, phase))


def is_mixed(phase: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether mixing had begun, from codes and response mask [B, T]."""
    return bool((~phase.signbit() & mask.bool()).any())


def weights_of(phase: torch.Tensor) -> torch.Tensor:
    """The weights of rollout correction; 1 at replayed tokens."""
    return torch.where(is_replayed(phase), 1.0, phase.abs())


# -- fields of the batch ---------------------------------------------------------------------------


def current_log_probs(batch: Batch, past: Past) -> Rows:
    """Key -> log-probs of a replayed row under the current policy, in the batch's order."""
    keys = [batch.keys[i] for i in _replayed_positions(batch, past)]
    if not keys:
        return {}
    rows = queue.read(keys, batch.partition_id, ["log_probs"])["log_probs"].unbind()
    return {key: of_response(row, len(past[key])) for key, row in zip(keys, rows, strict=True)}


def mark(batch: Batch, mixed: bool) -> None:
    """Write the phase code of every token, of padding too, since all rows need the field."""
    phases = [torch.full((tag["response_len"],), code_of(tag, mixed)) for tag in batch.tags]
    _put(batch, range(len(batch)), {PHASE: phases})


def put_recorded(batch: Batch, past: Past, keys: ExperienceConfig) -> bool:
    """Replace ``old_log_probs`` of replayed rows by their author's: pi_past of equation 4.

    Returns whether all rows have recorded ones. Others keep this step's, or get zeros
    (``exp_missing_log_probs=one``); with ``exp_is_correct=False`` all rows keep this step's.
    """
    if not keys.exp_is_correct:
        return False
    rows = {}
    for position in _replayed_positions(batch, past):
        trajectory = past[batch.keys[position]]
        if trajectory.has_log_probs or keys.exp_missing_log_probs == "one":
            rows[position] = torch.from_numpy(np.nan_to_num(trajectory.log_probs))
    if rows:
        _put(batch, rows, {"old_log_probs": list(rows.values())})
    return all(trajectory.has_log_probs for trajectory in past.values())


def exempt_replayed_rows(batch: Batch, past: Past) -> None:
    """Set replayed rows' rollout log-probs to the old ones: rollout correction then skips them."""
    rows = _replayed_positions(batch, past)
    if rows:
        keys = [batch.keys[i] for i in rows]
        old = queue.read(keys, batch.partition_id, ["old_log_probs"])["old_log_probs"]
        _put(batch, rows, {"rollout_log_probs": old.unbind()})


def add_correction(batch: Batch, mixed: bool) -> Batch:
    """Combine the phase with the weights that rollout correction has written over it."""
    weights = queue.read(batch.keys, batch.partition_id, [PHASE])[PHASE].unbind()
    codes = []
    for weight, tag in zip(weights, batch.tags, strict=True):
        phase = torch.full_like(weight, code_of(tag, mixed))
        codes.append(corrected(phase, weight))
    return _put(batch, range(len(batch)), {PHASE: codes})


def _put(
    batch: Batch, positions: Iterable[int], fields: Mapping[str, Sequence[torch.Tensor]]
) -> Batch:
    keys = [batch.keys[i] for i in positions]
    nested = {}
    for name, rows in fields.items():
        nested[name] = torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
    return queue.write(keys, batch.partition_id, TensorDict(nested, len(keys)))


def _replayed_positions(batch: Batch, past: Past) -> list[int]:
    """Positions in the batch of the rows in `past`; verl's padding is not among them."""
    rows = enumerate(zip(batch.keys, batch.tags, strict=True))
    return [i for i, (key, tag) in rows if key in past and not tag.get("is_padding")]


def settings_of(actor: Any) -> LossSettings:
    """The loss of verl's actor, whose configuration or dataclass this is."""
    ours = {name: getattr(actor.policy_loss, name) for name in OF_POLICY_LOSS}
    low, high = actor.clip_ratio_low, actor.clip_ratio_high
    return LossSettings(cliprange_low=low, cliprange_high=high, **ours)


def log_ratios(past: Past, current: Current) -> Rows:
    """log pi_current - log pi_past of the policy's own tokens, before any update, of the rows of
    `current` that have recorded log-probs.
    """
    recorded = {key: values for key, values in current.items() if past[key].has_log_probs}
    return {key: past[key].log_ratios(values) for key, values in recorded.items()}
