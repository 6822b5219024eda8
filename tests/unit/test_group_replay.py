"""Replay of whole groups: what is stored, drawn, dropped for drift or age, and what rescues a failed group."""

import numpy as np
import pytest

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory
from exgrpo.experience.choice import View
from exgrpo.experience.group_buffer import GroupBuffer, StoredGroup


def rollout(reward, step=1, token=0):
    return Trajectory([token, 1], [-1.0, -2.0], step, 0.5, reward=float(reward))


def group(question, *rewards, step=1, **more):
    rollouts = [rollout(reward, step, token) for token, reward in enumerate(rewards)]
    solved = tuple(one for one in rollouts if one.reward > 0.5)
    others = tuple(one for one in rollouts if one.reward <= 0.5)
    return RolloutGroup(question, len(rewards), solved, failures=others, **more)


def buffer_of(*steps, **bounds):
    buffer = GroupBuffer(**{"max_groups": 100, **bounds})
    for index, step in enumerate(steps):
        assert buffer.add(group(f"q{index}", 1, 0, step=step), step)
    return buffer


def test_a_group_is_stored_whole_with_its_rewards():
    buffer = GroupBuffer(4)
    assert buffer.add(group("a", 0, 1, 0), step=7)
    (stored,) = buffer
    assert (stored.question, stored.step, stored.tokens) == ("a", 7, 6)
    assert sorted(one.reward for one in stored.rollouts) == [0, 0, 1]


@pytest.mark.parametrize("rewards", [(0, 0, 0), (1, 1, 1)])
def test_a_group_without_advantages_is_not_stored(rewards):
    assert not GroupBuffer(4).add(group("a", *rewards), step=1)


def test_a_group_that_is_not_whole_is_not_stored():
    lost = RolloutGroup("a", 3, (rollout(1),), failures=(rollout(0),))
    refused = RolloutGroup("a", 3, (rollout(1),), refused=1, failures=(rollout(0),))
    buffer = GroupBuffer(4)
    assert not buffer.add(lost, step=1) and not buffer.add(refused, step=1) and len(buffer) == 0


def test_first_in_first_out():
    assert [one.question for one in buffer_of(1, 2, 3, 4, max_groups=2)] == ["q2", "q3"]


def test_groups_leave_by_age():
    buffer = buffer_of(1, 2, 3, max_age=2)
    buffer.expire(3)  # at step 4, the group of step 1 would be 3 steps old
    assert [one.step for one in buffer] == [2, 3]


def test_a_draw_has_each_question_once_and_none_that_is_excluded():
    buffer = GroupBuffer(100)
    for step in range(1, 9):
        for question in "abc":
            buffer.add(group(question, 1, 0, step=step), step)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert {one.question for one in buffer.choose(5, 9, rng, exclude={"b"})} == {"a", "c"}
        assert len(buffer.choose(1, 9, rng)) == 1


def test_draws_are_uniform_or_halve_with_age():
    rng = np.random.default_rng(0)
    for half_life, share_of_old in ((None, 1 / 2), (5, 1 / 5)):
        buffer = buffer_of(0, 10, half_life=half_life)
        drawn = [buffer.choose(1, 10, rng)[0].step for _ in range(2000)]
        assert np.mean(np.equal(drawn, 0)) == pytest.approx(share_of_old, abs=0.03)


def replay_of(questions="abcdefgh", **keys):
    config = ExperienceConfig(rollout_n=2, experience_start_sratio=0, **keys)
    return ExperienceReplay(config, list(questions)), iter((question, False) for question in list(questions) * 99)


def test_half_of_a_step_is_past_groups_for_which_nothing_is_generated():
    replay, questions = replay_of(exp_unit="group")
    first = replay.draw(1, 4, lambda: next(questions))
    assert first.fresh == list("abcd") and not first.stored
    replay.observe(1, [group(question, 1, 0) for question in first.fresh], {})
    second = replay.draw(2, 4, lambda: next(questions))
    assert len(second.stored) == len(second.fresh) == 2 and second.replayed == []
    assert not {one.question for one in second.stored} & set(second.fresh)


def test_published_replay_draws_no_groups():
    replay, questions = replay_of()
    replay.observe(1, [group(question, 1, 0) for question in replay.draw(1, 4, lambda: next(questions)).fresh], {})
    drawn = replay.draw(2, 4, lambda: next(questions))
    assert len(drawn.replayed) == 2 and not drawn.stored and len(replay.groups) == 0


def look(shift):
    """A policy whose log-probs are the recorded ones plus `shift(question)`."""

    def views(rows):
        return [View(np.full(len(one), 0.5), one.log_probs + shift(question)) for question, one in rows]

    return views


def test_a_group_that_the_policy_has_drifted_from_is_passed_over_and_dropped():
    replay, _ = replay_of(exp_unit="group", exp_max_drift=0.04)
    for question in "abc":
        replay.groups.add(group(question, 1, 0), 1)
    shifts = {"a": 0.19, "b": 0.21, "c": -0.21}  # mean squares .0361, .0441, .0441
    admitted = replay.admit(list(replay.groups), look(shifts.__getitem__))
    assert [one.question for one in admitted] == [one.question for one in replay.groups] == ["a"]


def test_without_a_bound_on_drift_nothing_is_looked_at():
    replay, _ = replay_of(exp_unit="group")
    replay.groups.add(group("a", 1, 0), 1)
    assert len(replay.admit(list(replay.groups), lambda rows: pytest.fail("looked"))) == 1


def test_a_trajectory_that_the_policy_has_drifted_from_is_passed_over():
    for bound, kept in ((0.05, {"a"}), (0.03, set())):
        replay, _ = replay_of(exp_max_drift=bound)
        choice = replay.choose({"a": (rollout(1),)}, look(lambda question: 0.2))
        assert set(choice.trajectories) == kept and choice.guarded == 1 - len(kept)


def test_a_failed_group_is_rescued_by_a_success_of_its_question():
    for rescue, expected in (("True", ["a"]), ("False", [])):
        replay, questions = replay_of(exp_rescue=rescue, exp_unit="group")
        replay.draw(1, 2, questions.__next__)
        replay.observe(1, [group("a", 1, 0), group("b", 0, 0)], {})
        replay.draw(2, 2, questions.__next__)
        assert replay.rescuable(["a", "b", "c"]) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"exp_unit": "token"}, "trainer.exp_unit=token: must be one of trajectory, group"),
        ({"exp_max_drift": 0}, "trainer.exp_max_drift=0: must be a finite number above 0, or null"),
        ({"exp_age_half_life": 5}, "trainer.exp_age_half_life=5: must be null unless trainer.exp_unit=group"),
        ({"experience_max_groups": 0}, "trainer.experience_max_groups=0: must be an integer of at least 1"),
        ({"exp_rescue": "maybe"}, "trainer.exp_rescue=maybe: must be true or false"),
    ],
)
def test_a_wrong_key_is_one_line(keys, message):
    with pytest.raises(ValueError, match=message) as error:
        ExperienceConfig(8, **keys)
    assert "\n" not in str(error.value)


def test_wrong_groups_are_refused():
    with pytest.raises(ValueError, match="failures has 2 entries beside 1 successes: must be at most size=2"):
        RolloutGroup("a", 2, (rollout(1),), failures=(rollout(0), rollout(0)))
    with pytest.raises(ValueError, match=r"failures\[0\] is a int: must be a Trajectory"):
        RolloutGroup("a", 2, (), failures=(3,))
    with pytest.raises(ValueError, match="rollouts has 1 entries: a group must have 2 or more"):
        StoredGroup("a", 1, (rollout(1),))
