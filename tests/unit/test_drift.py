"""How far the policy is from what it may replay: one mean over the tokens that the author wrote,
none counts twice.
"""

import numpy as np
import pytest

from exgrpo import ExperienceConfig, ExperienceReplay, Trajectory
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.trajectory_selector import TokenScores


def shifted(*shifts):
    """A policy whose log-probs are the recorded ones plus a shift for each token."""

    def look(rows):
        return [
            TokenScores(np.ones(len(one)), one.log_probs + shift)
            for (_, one), shift in zip(rows, shifts, strict=True)
        ]

    return look


@pytest.mark.parametrize(("shifts", "is_admitted"), [((0.5, 0.0), True), ((0.0, 0.25), False)])
def test_the_drift_of_a_group_is_the_mean_over_all_its_tokens(shifts, is_admitted):
    """Of rollouts of one and of nine tokens: .25 / 10 and .0625 * 9 / 10; the means of their means
    say the opposite.
    """
    group = StoredGroup(
        "a", 1, (Trajectory([1], [-1.0], 1, reward=0.0), Trajectory([2] * 9, [-1.0] * 9, 1))
    )
    replay = ExperienceReplay(
        ExperienceConfig(rollout_n=2, exp_unit="group", exp_max_drift=0.04), ["a"]
    )
    assert [each.stored for each in replay.admit([group], shifted(*shifts))] == [
        group
    ] * is_admitted


def test_a_candidate_that_alone_is_close_is_chosen_without_a_score():
    near, far = Trajectory([1], [-1.0], 1), Trajectory([2], [-1.0], 1)
    replay = ExperienceReplay(ExperienceConfig(rollout_n=2, exp_max_drift=0.04), ["a"])
    (group,) = replay.choose({"a": (far, near)}, shifted(1.0, 0.0)).groups
    assert group.chosen == 1 and np.isnan(group.scores).all()


@pytest.mark.parametrize(("shift", "is_kept"), [((0, 9, 0), True), ((0, 0, 3), False)])
def test_what_a_tool_has_said_is_no_drift(shift, is_kept):
    with_a_tool = Trajectory([1, 2, 3], [-1.0, -1.0, -1.0], 1, loss_mask=[1, 0, 1])
    replay = ExperienceReplay(ExperienceConfig(rollout_n=2, exp_max_drift=0.04), ["a"])
    choice = replay.choose({"a": (with_a_tool,)}, shifted(np.array(shift)))
    assert (set(choice.trajectories) == {"a"}) is is_kept and choice.guarded == (not is_kept)
