"""What a replayed trajectory weighs in its step: what `exgrpo-inspect --explain` shows of it.

The log of replays, and with it each step that a checkpoint can show, has these numbers; they need
the log-probs before the update, which no later moment has. A run without checkpoints is spared
them. They cost .05 s of one core for 64 rows of 8,192 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from exgrpo.advantages import group_advantages
from exgrpo.experience.experience_helpers import effective_sample_size
from exgrpo.experience.replayed_group import Effect, ReplayedGroup
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import on_policy_ratio, token_losses_and_sums
from exgrpo.on_verl.correct import Current, corrects, settings_of
from exgrpo.on_verl.observe import FreshRow
from exgrpo.replay_losses import takes_rows


@dataclass(frozen=True)
class LossShares:
    """Computes the `Effect` of replayed rows; holds the settings that it depends on.

    Attributes:
        settings: of the loss.
        by_std: whether GRPO divides by the standard deviation.
        recorded_ratios: whether the loss uses recorded log-probs (exp_is_correct).
        missing_as_one: whether a trajectory without log-probs counts as written with probability 1.
        known: whether the advantage is GRPO's over the rewards alone, and all tokens have our loss,
            unweighted; if not, advantage and shares stay unknown.
        shown: whether the run writes checkpoints, in which alone effects can be looked at.
    """

    settings: LossSettings
    by_std: bool
    recorded_ratios: bool
    missing_as_one: bool
    known: bool
    shown: bool = True

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
            and keys.exp_unit != "group"  # for whose rows `fill` computes no advantages
            and keys.exp_place != "beside"  # whose rows have no advantage
            and not takes_rows(settings.off_policy_loss)
        )
        return cls(
            settings,
            by_std=bool(algorithm.norm_adv_by_std_in_grpo),
            recorded_ratios=keys.exp_is_correct,
            missing_as_one=keys.exp_missing_log_probs == "one",
            known=plain,
            shown=keys.save_freq > 0,
        )

    def fill(
        self, groups: Sequence[ReplayedGroup], current: Current, fresh: Sequence[FreshRow]
    ) -> None:
        """Write the effect into the records of an update; `current` is of all of their rows. Past
        groups have ratios and mean reward only.
        """
        if not self.shown:
            return
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
        # The loss of a replayed row is computed as the actor does; that of fresh rows, whose ratio
        # is 1 before the update, follows from their advantage.
        own = {}
        for group, advantage in zip(joined, of_joined, strict=True):
            own[group.uid] = self._replayed_loss(group, current, advantage) if self.known else 0.0
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
        rows = {"is_replayed": torch.ones_like(mask), "response_mask": mask}
        losses, _ = token_losses_and_sums(log_prob, old, advantages, **rows, settings=self.settings)
        return float(losses.abs().sum())

    def _fresh_unit(self) -> float:
        """The absolute loss of a fresh token of advantage 1, at its ratio of 1."""
        one, settings = torch.zeros(1), self.settings
        weights = settings.on_policy_reshape_weight, settings.on_policy_reshape_pow_exp
        return float(on_policy_ratio(one, one, settings.on_policy_reshape, *weights).abs())


def _ratios(group: ReplayedGroup, current: Current) -> tuple[float, float, float, float]:
    """Mean, least, greatest, effective sample size of the ratios; NaN if none were recorded."""
    if not all(rollout.has_log_probs for rollout in group.rollouts):
        return (math.nan,) * 4
    exact = {key: current[key].astype(np.float64) for key in group.rows}
    logs = np.concatenate([rollout.log_ratios(exact[key]) for key, rollout in group.rows.items()])
    ratios = np.exp(logs)
    mean, low, high = map(float, (ratios.mean(), ratios.min(), ratios.max()))
    return mean, low, high, effective_sample_size(logs)
