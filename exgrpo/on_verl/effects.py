"""What each replayed trajectory weighs in its step, before the first update: ratios, advantage, share of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from exgrpo.experience.replay_log import Effect
from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import effective_sample_size
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import on_policy_ratio, token_losses_and_sums
from exgrpo.on_verl.rows import FreshRow

Current = Mapping[str, npt.NDArray[np.float32]]  # name of a replayed row -> log-probs under the current policy, [T]
_EPSILON = 1e-6  # verl's, in compute_grpo_outcome_advantage


@dataclass(frozen=True)
class Weighing:
    """The settings on which an effect depends.

    Attributes:
        settings: of the loss.
        by_std: whether GRPO divides by the standard deviation.
        recorded_ratios: whether the loss uses recorded log-probs (exp_is_correct).
        missing_as_one: whether a trajectory without log-probs counts as written with probability 1.
        known: whether the advantage is GRPO's over the rewards alone, and all tokens have our loss, unweighted; if not,
            advantage and shares stay unknown.
    """

    settings: LossSettings
    by_std: bool
    recorded_ratios: bool
    missing_as_one: bool
    known: bool

    @classmethod
    def of_config(cls, config: Any, recorded_ratios: bool, missing: str) -> Weighing:
        """From verl's configuration and two keys of replay."""
        actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
        ours = [each.name for each in fields(LossSettings) if not each.name.startswith("cliprange_")]
        settings = LossSettings(
            cliprange_low=actor.clip_ratio_low,
            cliprange_high=actor.clip_ratio_high,
            **{name: actor.policy_loss[name] for name in ours},
        )
        correction = algorithm.rollout_correction
        plain = (
            algorithm.adv_estimator == "grpo"
            and not algorithm.use_kl_in_reward
            and settings.all_max_clip == -1
            and actor.policy_loss.fresh_loss_mode == actor.policy_loss.loss_mode  # fresh tokens have our loss too
            and correction.rollout_is is None
            and correction.rollout_rs is None
            and config.trainer.exp_unit != "group"  # whose rows are not among those of `effects`
        )
        return cls(settings, bool(algorithm.norm_adv_by_std_in_grpo), recorded_ratios, missing == "one", plain)

    def effects(
        self,
        replayed: Mapping[str, Trajectory],
        current: Current,
        fresh: Sequence[FreshRow],
    ) -> dict[str, Effect]:
        """uid -> effect of its replayed row.

        Args:
            replayed: uid -> the trajectory that joined its group.
            current: of those, and maybe of others.
            fresh: the step's fresh rows, of all groups.
        """
        if not replayed:
            return {}
        rewards: dict[str, list[float]] = {}
        for row in fresh:
            rewards.setdefault(row.uid, []).append(row.reward)
        for uid, trajectory in replayed.items():
            rewards[uid].append(trajectory.reward)
        of_group = {uid: self._advantages(np.array(values)) for uid, values in rewards.items()}
        losses = {uid: self._replayed_loss(replayed[uid], current[uid], of_group[uid][-1]) for uid in replayed}
        groups = dict.fromkeys(rewards, 0.0) | losses
        seen = dict.fromkeys(rewards, 0)
        unit = self._fresh_unit()
        for row in fresh:
            groups[row.uid] += unit * abs(of_group[row.uid][seen[row.uid]]) * int(row.loss_mask.astype(bool).sum())
            seen[row.uid] += 1
        step = sum(groups.values())
        return {
            uid: Effect(
                *_ratios(trajectory, current[uid]),
                float(np.mean(rewards[uid])),
                *(
                    (float(of_group[uid][-1]), losses[uid] / groups[uid] if groups[uid] else 0.0, losses[uid] / step)
                    if self.known and step
                    else ()
                ),
            )
            for uid, trajectory in replayed.items()
        }

    def _advantages(self, rewards: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """GRPO over a group, as verl computes it."""
        if len(rewards) == 1:
            return rewards
        centred = rewards - rewards.mean()
        return centred / (rewards.std(ddof=1) + _EPSILON) if self.by_std else centred

    def _replayed_loss(self, trajectory: Trajectory, current_T: npt.NDArray[np.float32], advantage: float) -> float:
        """Sum of the absolute token losses of a replayed row."""
        log_prob = torch.from_numpy(np.array(current_T, np.float32))[None]
        old = log_prob
        if self.recorded_ratios and (trajectory.has_log_probs or self.missing_as_one):
            old = torch.from_numpy(np.nan_to_num(trajectory.log_probs))[None]
        mask = torch.ones(log_prob.shape, dtype=torch.bool)
        if trajectory.loss_mask is not None:
            mask = torch.from_numpy(trajectory.loss_mask.copy())[None]
        advantages = torch.full_like(log_prob, advantage)
        losses, _ = token_losses_and_sums(log_prob, old, advantages, torch.ones_like(mask), mask, self.settings)
        return float(losses.abs().sum())

    def _fresh_unit(self) -> float:
        """The factor of a fresh token's advantage at its ratio of 1."""
        one, settings = torch.zeros(1), self.settings
        weights = settings.on_policy_reshape_weight, settings.on_policy_reshape_pow_exp
        return float(on_policy_ratio(one, one, settings.on_policy_reshape, *weights).abs())


def log_ratios(replayed: Mapping[str, Trajectory], current: Current) -> dict[str, npt.NDArray[np.float32]]:
    """log pi_current - log pi_past of the policy's own tokens in rows with recorded log-probs, before any update.

    Args:
        replayed: name of a row -> its trajectory; others may be among them.
        current: whose rows these are, and in whose order.
    """
    return {
        name: replayed[name].of_actions(values - replayed[name].log_probs)
        for name, values in current.items()
        if replayed[name].has_log_probs
    }


def _ratios(trajectory: Trajectory, current_T: npt.NDArray[np.float32]) -> tuple[float, float, float, float]:
    """Mean, least, greatest and effective sample size of the importance ratios; NaN without recorded log-probs."""
    if not trajectory.has_log_probs:
        return (float("nan"),) * 4
    return ratios_of(trajectory.of_actions(np.asarray(current_T, np.float64) - trajectory.log_probs))


def ratios_of(logs: npt.NDArray[np.floating]) -> tuple[float, float, float, float]:
    """The same of log-ratios [tokens]."""
    ratios = np.exp(logs)
    return float(ratios.mean()), float(ratios.min()), float(ratios.max()), effective_sample_size(logs)
