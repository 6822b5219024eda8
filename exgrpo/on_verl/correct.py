"""Correct: the loss learns which tokens are replayed, their past log-probs, and their share of it.

verl's loss never sees the batch; the one channel that reaches it for each token is
``rollout_is_weights``. A fresh token has its weight of rollout correction there, 1 without
correction. Before mixing begins the number is negative, -0.0 included. A token of a replayed
trajectory, which has a ratio of its own, is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import DictConfig
from tensordict import TensorDict

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_helpers import effective_sample_size
from exgrpo.experience.replay_log import Effect, ReplayedGroup
from exgrpo.experience.trajectory import Trajectory
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import on_policy_ratio, token_losses_and_sums
from exgrpo.on_verl import queue
from exgrpo.on_verl.queue import Batch, of_response
from exgrpo.replay.tensors import group_advantages

if TYPE_CHECKING:
    from exgrpo.on_verl.observe import FreshRow

PHASE = "rollout_is_weights"  # verl's field
ON_POLICY = -1.0  # before mixing begins: every token is fresh, with the clipped objective
FRESH = 1.0  # a fresh token of a mixed step
REPLAYED = math.inf  # a token of a replayed trajectory
Past = Mapping[str, Trajectory]  # key of a replayed row -> its trajectory
Rows = dict[str, npt.NDArray[np.float32]]  # key of a row -> a number of each of its tokens, [T]
Current = Mapping[str, npt.NDArray[np.float32]]  # log-probs under the current policy
# all of LossSettings but PPO's clip range, which is a setting of verl's actor
OF_POLICY_LOSS = {
    each.name: each for each in fields(LossSettings) if not each.name.startswith("cliprange_")
}


# -- phase of each token ---------------------------------------------------------------------------


def code_of(tag: Mapping[str, Any], mixed: bool) -> float:
    """That of a row's tokens, by its tag and whether mixing has begun."""
    if tag.get("is_replayed"):
        return REPLAYED
    return FRESH if mixed else ON_POLICY


def corrects(config: DictConfig) -> bool:
    """Whether verl computes weights of rollout correction, or rejects tokens by them."""
    correction = config.algorithm.rollout_correction or {}  # null: off
    return any(correction.get(name) is not None for name in ("rollout_is", "rollout_rs"))


def corrected(phase: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The codes [T] with the weights [T] of rollout correction at fresh tokens."""
    return torch.where(phase.isinf(), phase, torch.copysign(weights, phase))


def is_mixed(phase: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether mixing had begun, from codes and response mask [B, T]."""
    return bool((~phase.signbit() & mask.bool()).any())


def weights_of(phase: torch.Tensor) -> torch.Tensor:
    """The weights of rollout correction; 1 at replayed tokens."""
    return torch.where(phase.isinf(), 1.0, phase.abs())


# -- fields of the batch ---------------------------------------------------------------------------


def current_log_probs(batch: Batch, past: Past) -> Rows:
    """The log-probs of replayed rows by the actor's pass; in the batch's order."""
    keys = [batch.keys[i] for i in _replayed_positions(batch, past)]
    if not keys:
        return {}
    rows = queue.read(keys, batch.partition_id, ["log_probs"])["log_probs"].unbind()
    return {key: of_response(row, len(past[key])) for key, row in zip(keys, rows, strict=True)}


def mark(batch: Batch, mixed: bool) -> None:
    """Write the phase code of every token; of padding too, as a field must be of all rows."""
    phases = [torch.full((tag["response_len"],), code_of(tag, mixed)) for tag in batch.tags]
    _put(batch, range(len(batch)), {PHASE: phases})


def put_recorded(batch: Batch, past: Past, keys: ExperienceConfig) -> bool:
    """Make the ``old_log_probs`` of replayed rows those of their author: pi_past of equation 4.

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
    """Give replayed rows equal rollout and old log-probs: rollout correction leaves them alone."""
    rows = _replayed_positions(batch, past)
    if rows:
        keys = [batch.keys[i] for i in rows]
        old = queue.read(keys, batch.partition_id, ["old_log_probs"])["old_log_probs"]
        _put(batch, rows, {"rollout_log_probs": old.unbind()})


def add_correction(batch: Batch, mixed: bool) -> Batch:
    """Rollout correction has put its weights into the channel of the phase: both in one code."""
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


# -- shares of the loss ----------------------------------------------------------------------------


def settings_of(actor: Any) -> LossSettings:
    """The loss of verl's actor, whose configuration or dataclass this is."""
    ours = {name: getattr(actor.policy_loss, name) for name in OF_POLICY_LOSS}
    low, high = actor.clip_ratio_low, actor.clip_ratio_high
    return LossSettings(cliprange_low=low, cliprange_high=high, **ours)


@dataclass(frozen=True)
class LossShares:
    """The settings on which an effect depends.

    Attributes:
        settings: of the loss.
        by_std: whether GRPO divides by the standard deviation.
        recorded_ratios: whether the loss uses recorded log-probs (exp_is_correct).
        missing_as_one: whether a trajectory without log-probs counts as written with probability 1.
        known: whether the advantage is GRPO's over the rewards alone, and all tokens have our loss,
            unweighted; if not, advantage and shares stay unknown.
    """

    settings: LossSettings
    by_std: bool
    recorded_ratios: bool
    missing_as_one: bool
    known: bool

    @classmethod
    def of_config(cls, config: Any) -> LossShares:
        actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
        keys, settings = config.trainer, settings_of(actor)
        plain = (
            algorithm.adv_estimator == "grpo"
            and not algorithm.use_kl_in_reward
            and settings.all_max_clip == -1
            and actor.policy_loss.fresh_loss_mode == actor.policy_loss.loss_mode
            and not corrects(config)
            and keys.exp_unit != "group"  # whose rows are not among those of `fill`
        )
        return cls(
            settings,
            by_std=bool(algorithm.norm_adv_by_std_in_grpo),
            recorded_ratios=keys.exp_is_correct,
            missing_as_one=keys.exp_missing_log_probs == "one",
            known=plain,
        )

    def fill(
        self, groups: Sequence[ReplayedGroup], current: Current, fresh: Sequence[FreshRow]
    ) -> None:
        """Write the effect into the records of an update; `current` is of all of their rows. Past
        groups have ratios and mean reward only.
        """
        joined = [group for group in groups if group.stored is None]
        for group in groups:
            if group.stored is not None:
                mean = float(np.mean([rollout.reward for rollout in group.rollouts]))
                group.effect = Effect(*_ratios(group, current), mean)
        if not joined:
            return
        uids = [row.uid for row in fresh] + [group.uid for group in joined]
        rewards = [row.reward for row in fresh] + [group.rollouts[0].reward for group in joined]
        exact = torch.tensor(rewards, dtype=torch.float64)
        advantages = group_advantages(exact, uids, self.by_std).tolist()
        of_joined = advantages[len(fresh) :]
        own = {}
        for group, advantage in zip(joined, of_joined, strict=True):
            own[group.uid] = self._replayed_loss(group, current, advantage)
        losses = dict.fromkeys(uids, 0.0) | own  # uid -> absolute token losses of the group
        unit = self._fresh_unit()
        for row, advantage in zip(fresh, advantages, strict=False):
            losses[row.uid] += unit * abs(advantage) * int(row.loss_mask.astype(bool).sum())
        step = sum(losses.values())
        for group, advantage in zip(joined, of_joined, strict=True):
            rows = zip(uids, rewards, strict=True)
            mean = float(np.mean([reward for uid, reward in rows if uid == group.uid]))
            share = own[group.uid] / losses[group.uid] if losses[group.uid] else 0.0
            known = (advantage, share, own[group.uid] / step) if self.known and step else ()
            group.effect = Effect(*_ratios(group, current), mean, *known)

    def _replayed_loss(self, group: ReplayedGroup, current: Current, advantage: float) -> float:
        """Sum of the absolute token losses of a replayed row."""
        ((key, trajectory),) = group.rows.items()
        log_prob = torch.from_numpy(np.array(current[key], np.float32))[None]
        old = log_prob
        if self.recorded_ratios and (trajectory.has_log_probs or self.missing_as_one):
            old = torch.from_numpy(np.nan_to_num(trajectory.log_probs))[None]
        mask = torch.ones(log_prob.shape, dtype=torch.bool)
        if trajectory.loss_mask is not None:
            mask = torch.from_numpy(trajectory.loss_mask.copy())[None]
        advantages = torch.full_like(log_prob, advantage)
        losses, _ = token_losses_and_sums(
            log_prob, old, advantages, torch.ones_like(mask), mask, self.settings
        )
        return float(losses.abs().sum())

    def _fresh_unit(self) -> float:
        """The factor of a fresh token's advantage at its ratio of 1."""
        one, settings = torch.zeros(1), self.settings
        weights = settings.on_policy_reshape_weight, settings.on_policy_reshape_pow_exp
        return float(on_policy_ratio(one, one, settings.on_policy_reshape, *weights).abs())


def log_ratios(past: Past, current: Current) -> Rows:
    """log pi_current - log pi_past of the policy's own tokens, before any update, of the rows of
    `current` that have recorded log-probs.
    """
    recorded = {key: values for key, values in current.items() if past[key].has_log_probs}
    return {key: past[key].log_ratios(values) for key, values in recorded.items()}


def _ratios(group: ReplayedGroup, current: Current) -> tuple[float, float, float, float]:
    """Mean, least, greatest, effective sample size of the ratios; NaN if none were recorded."""
    if not all(rollout.has_log_probs for rollout in group.rollouts):
        return (math.nan,) * 4
    exact = {key: current[key].astype(np.float64) for key in group.rows}
    logs = np.concatenate([rollout.log_ratios(exact[key]) for key, rollout in group.rows.items()])
    ratios = np.exp(logs)
    mean, low, high = map(float, (ratios.mean(), ratios.min(), ratios.max()))
    return mean, low, high, effective_sample_size(logs)
