"""What a replayed row weighs in its step, against verl's advantage and our loss computed over the
whole batch.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from composed import configuration
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.trajectory import Trajectory
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import token_losses_and_sums
from exgrpo.on_verl.loss_shares import LossShares
from exgrpo.on_verl.observe import FreshRow
from exgrpo.preflight.checks import resolve

SETTINGS = LossSettings(loss_remove_clip=True, off_policy_reshape="p_div_p_0.1")
SHARES = LossShares(SETTINGS, by_std=False, recorded_ratios=True, missing_as_one=False, known=True)
REPLAYED = Trajectory([4, 5, 6], [-0.5, -1.0, -2.0], 2, 0.5, loss_mask=[1, 0, 1])
CURRENT = np.array([-0.25, -3.0, -2.5], np.float32)


def fresh(uid, reward, length):
    ones = np.ones(length)
    return FreshRow(uid, f"question {uid}", reward, ones.astype(int), -ones, ones, ones)


ROWS = [
    fresh("a", 1.0, 4),
    fresh("a", 0.0, 2),
    fresh("a", 0.0, 7),
    fresh("b", 1.0, 5),
    fresh("b", 0.0, 6),
]


def effect_of(shares, trajectory):
    """Of the trajectory in group a, among the fresh rows."""
    group = ReplayedGroup(
        "question a", [trajectory], 0, [np.nan], uid="a", rows={"a_3_0": trajectory}
    )
    shares.fill([group], {"a_3_0": CURRENT}, ROWS)
    return group.effect


def by_the_whole_batch(by_std):
    """Advantage of the replayed row, and the absolute token losses of all rows, as verl and our
    loss compute them.
    """
    lengths, width = [4, 2, 7, 5, 6, 3], 7
    mask = torch.tensor([[1.0] * n + [0.0] * (width - n) for n in lengths])
    mask[5, 1] = 0
    scores = torch.zeros(6, width)
    scores[[0, 3, 5], [0, 0, 0]] = 1.0
    index = np.array(["a", "a", "a", "b", "b", "a"], dtype=object)
    advantages, _ = compute_grpo_outcome_advantage(
        scores, mask, index, norm_adv_by_std_in_grpo=by_std
    )
    log_prob = torch.full((6, width), -1.0)
    log_prob[5, :3] = torch.from_numpy(CURRENT)
    old = log_prob.clone()
    old[5, :3] = torch.from_numpy(REPLAYED.log_probs.copy())
    is_replayed = torch.tensor([False] * 5 + [True])
    losses, _ = token_losses_and_sums(log_prob, old, advantages, is_replayed, mask, SETTINGS)
    return float(advantages[5, 0]), losses.abs().sum(-1)


@pytest.mark.parametrize("by_std", [False, True])
def test_advantage_and_shares_are_those_of_the_whole_batch(by_std):
    shares = replace(SHARES, by_std=by_std)
    effect = effect_of(shares, REPLAYED)
    advantage, losses = by_the_whole_batch(by_std)
    group = losses[[0, 1, 2, 5]].sum()
    assert effect.group_mean == 0.5 and effect.advantage == pytest.approx(advantage, rel=1e-5)
    assert effect.group_share == pytest.approx(float(losses[5] / group), rel=1e-5)
    assert effect.step_share == pytest.approx(float(losses[5] / losses.sum()), rel=1e-5)
    ratios = np.exp([0.25, -0.5])
    assert [effect.ratio_low, effect.ratio_high] == pytest.approx(sorted(ratios))
    assert effect.ratio_mean == pytest.approx(ratios.mean())
    assert effect.ratio_ess == pytest.approx(ratios.sum() ** 2 / (2 * (ratios**2).sum()))


def test_what_is_not_known_is_nan():
    unknown = effect_of(replace(SHARES, known=False), REPLAYED)
    assert (
        np.isnan([unknown.advantage, unknown.group_share, unknown.step_share]).all()
        and unknown.ratio_mean > 0
    )
    teacher = Trajectory.without_log_probs([4, 5, 6], 0)
    effect = effect_of(SHARES, teacher)
    assert np.isnan(effect.ratio_mean) and effect.advantage == 0.5 and 0 < effect.step_share < 1
    SHARES.fill([], {}, ROWS)


def test_log_probs_nobody_recorded_weigh_as_the_key_says():
    """As if the author had been certain of each token, or as if it had been the current policy."""
    teacher, certain, current = (
        Trajectory.without_log_probs([4, 5, 6], 0),
        Trajectory([4, 5, 6], [0.0, 0.0, 0.0], 0),
        Trajectory([4, 5, 6], CURRENT, 0),
    )
    for missing_as_one, same in ((True, certain), (False, current)):
        shares = replace(SHARES, missing_as_one=missing_as_one)
        found, expected = (effect_of(shares, each) for each in (teacher, same))
        assert (found.group_share, found.step_share) == (expected.group_share, expected.step_share)


@pytest.mark.parametrize(
    ("override", "known"),
    [
        ("trainer.experience=True", True),
        ("algorithm.adv_estimator=rloo", False),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", False),
        ("algorithm.rollout_correction.rollout_is=token", False),
        ("algorithm.use_kl_in_reward=True", False),
    ],
)
def test_shares_are_known_where_all_tokens_have_our_loss(files, override, known):
    config = configuration(files, override)
    resolve(config)
    assert LossShares.of_config(config).known is known


def test_a_run_that_writes_no_checkpoint_has_no_effects(files):
    """Nobody could look at them."""
    for save_freq, shown in (("2", True), ("-1", False)):
        config = configuration(files, f"trainer.save_freq={save_freq}")
        resolve(config)
        shares = LossShares.of_config(config)
        assert shares.shown is shown and np.isnan(effect_of(shares, REPLAYED).group_mean) != shown
