"""Replay of whole groups: what is stored, drawn, dropped for drift or age, and what rescues a
failed group.
"""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory
from exgrpo.experience.group_buffer import GroupBuffer, StoredGroup
from exgrpo.experience.replayed_group import Effect
from exgrpo.experience.trajectory_selector import TokenScores
from exgrpo.saved.pool_files import DamagedPool, read_groups, read_manifest
from exgrpo.saved.pool_folder import PoolFolder


def rollout(reward, step=1, token=0, length=2):
    return Trajectory(
        [token, *range(1, length)], -np.arange(1.0, length + 1), step, 0.5, reward=float(reward)
    )


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
        assert {one.question for one in buffer.choose(5, rng, exclude={"b"})} == {"a", "c"}
        assert len(buffer.choose(1, rng)) == 1


def test_draws_are_uniform():
    rng, buffer = np.random.default_rng(0), buffer_of(0, 10)
    drawn = [buffer.choose(1, rng)[0].step for _ in range(2000)]
    assert np.mean(np.equal(drawn, 0)) == pytest.approx(1 / 2, abs=0.03)


def replay_of(questions="abcdefgh", start=0, **keys):
    config = ExperienceConfig(rollout_n=2, experience_start_sratio=start, **keys)
    return ExperienceReplay(config, list(questions)), iter(
        (question, False) for question in list(questions) * 99
    )


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
    replay.observe(
        1,
        [group(question, 1, 0) for question in replay.draw(1, 4, lambda: next(questions)).fresh],
        {},
    )
    drawn = replay.draw(2, 4, lambda: next(questions))
    assert len(drawn.replayed) == 2 and not drawn.stored and len(replay.groups) == 0


def test_past_groups_stand_in_for_dead_ones_at_most_a_share_of_the_step():
    replay, questions = replay_of(exp_unit="group", exp_place="dead", experience_ratio=0.5)
    replay.observe(1, [group(question, 1, 0) for question in "abcd"], {})
    drawn = replay.draw(2, 4, lambda: next(questions))
    assert drawn.fresh == list("abcd") and not drawn.stored, "all are asked"
    stand_ins = replay.stand_ins(
        {"e": [0.0, 0.0], "f": [1.0, 0.0], "a": [1.0, 1.0], "g": [0.0, 0.0]}
    )
    assert [*stand_ins] == ["e", "a"], "the first two of three"
    chosen = {each.question for each in stand_ins.values()}
    assert len(chosen) == 2 and chosen < set("bcd"), "distinct, and none that the step has"
    rewards = {"e": [0.0, 0.0], "a": [0.0, 1.0]}
    for _ in range(20):  # each is one of three if those of other updates are not left out
        (left,) = replay.stand_ins(rewards, elsewhere={"b", "d"}).values()
        assert left.question == "c", "none of the step's other updates"


def test_imported_groups_wait_until_mixing_begins():
    replay, _ = replay_of(exp_unit="group", exp_place="dead", experience_ratio=0.5, start=0.4)
    replay.groups.add(group("a", 1, 0), 1)
    rewards = {"e": [0.0, 0.0], "f": [1.0, 0.0]}
    assert replay.stand_ins(rewards) == {}
    replay.observe(1, [group("e", 1, 0)], {})
    assert [*replay.stand_ins(rewards)] == ["e"]


def test_without_the_key_nothing_stands_in():
    replay, _ = replay_of(exp_unit="group")
    replay.observe(1, [group(question, 1, 0) for question in "abcd"], {})
    assert replay.stand_ins({"e": [0.0, 0.0]}) == {}


def look(shift):
    """A policy whose log-probs are the recorded ones plus `shift(question)`."""

    def views(rows):
        return [
            TokenScores(np.full(len(one), 0.5), one.log_probs + shift(question))
            for question, one in rows
        ]

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


def test_before_mixing_begins_no_group_is_rescued_though_the_pool_was_imported():
    replay, questions = replay_of(exp_rescue=True, start=0.4)
    replay.pool.observe(group("a", 1, 0))
    for step, solved, expected in (
        (1, 0, []),
        (2, 1, []),
        (3, 0, ["a"]),
    ):  # it begins after a step with successes
        replay.draw(step, 2, questions.__next__)
        assert replay.rescuable(["a"]) == expected
        replay.observe(step, [group("b", solved, 0)], {})


def test_a_resumed_run_draws_the_same_groups(tmp_path):
    replay, questions = replay_of(exp_unit="group", experience_max_age=9)
    for step in (1, 2):
        fresh = replay.draw(step, 4, questions.__next__).fresh
        replay.observe(step, [group(question, 1, 0, step=step) for question in fresh], {})
    state = json.loads(json.dumps(replay.state()))
    PoolFolder().save(replay.pool, tmp_path / "pool", 2, {}, state, list(replay.groups))
    other, _ = replay_of(exp_unit="group", experience_max_age=9)
    other.restore(read_manifest(tmp_path / "pool")["replay_state"])
    other.groups.hold(read_groups(tmp_path / "pool"))
    drawn, again = (
        each.draw(3, 4, iter([(q, False) for q in "hgfe"]).__next__).stored
        for each in (replay, other)
    )
    assert [(one.question, one.step) for one in drawn] == [
        (one.question, one.step) for one in again
    ]
    for one, same in zip(drawn, again, strict=True):
        for rollout_now, rollout_then in zip(one.rollouts, same.rollouts, strict=True):
            np.testing.assert_array_equal(rollout_now.log_probs, rollout_then.log_probs)
            assert (rollout_now.key, rollout_now.reward) == (rollout_then.key, rollout_then.reward)
    assert drawn[0].prompt is None and again[0].prompt is None


def test_groups_are_saved_whole_and_readably(tmp_path):
    prompts = [np.array([5, 6, 7], np.int32), np.array([8], np.int32), None]
    buffer = GroupBuffer(100)
    for step, prompt in enumerate(prompts, 1):
        masked = Trajectory(
            [1, 2, 3], [-1.0, -2.0, -3.0], step, 0.5, [1, 0, 1], 0.25, None, "a grader"
        )
        assert buffer.add(
            RolloutGroup("a", 2, (rollout(1, step),), failures=(masked,), prompt=prompt), step
        )
    replay, _ = replay_of()
    PoolFolder().save(replay.pool, tmp_path / "pool", 3, {}, {}, list(buffer))
    saved = read_groups(tmp_path / "pool")
    assert [one.step for one in saved] == [1, 2, 3]
    for group_now, prompt in zip(saved, prompts, strict=True):
        assert (
            prompt is None
            if group_now.prompt is None
            else group_now.prompt.tolist() == prompt.tolist()
        )
        success, masked = group_now.rollouts
        assert (success.reward, masked.reward, masked.grader) == (
            1,
            0.25,
            "a grader",
        ) and success.loss_mask is None
        assert masked.loss_mask.tolist() == [True, False, True] and masked.log_probs.tolist() == [
            -1,
            -2,
            -3,
        ]
    table = pq.read_table(tmp_path / "pool" / "groups.parquet")
    assert (
        table["stored"].to_pylist() == [1, 1, 2, 2, 3, 3]
        and table["reward"].to_pylist() == [1, 0.25] * 3
    )
    (tmp_path / "pool" / "groups.parquet").write_bytes(b"")
    with pytest.raises(DamagedPool, match=r"sha256 of groups\.parquet"):
        read_groups(tmp_path / "pool")
    PoolFolder().save(replay.pool, tmp_path / "none", 3, {}, {})
    assert (
        read_groups(tmp_path / "none") == [] and not (tmp_path / "none" / "groups.parquet").exists()
    )


def test_groups_that_the_data_no_longer_has_are_dropped():
    buffer = GroupBuffer(100)
    for question, prompt in (("a", [1, 2]), ("b", [1, 2]), ("a", [1, 2, 3]), ("a", None)):
        tokens = None if prompt is None else np.array(prompt, np.int32)
        buffer.add(
            RolloutGroup(question, 2, (rollout(1),), failures=(rollout(0),), prompt=tokens), 1
        )
    assert buffer.keep_only({"a"}, max_prompt=2, max_tokens=2) == 3
    assert [(one.question, one.prompt.tolist()) for one in buffer] == [("a", [1, 2])]
    buffer.add(
        RolloutGroup(
            "a", 2, (rollout(1),), failures=(rollout(0, length=3),), prompt=np.array([1, 2])
        ),
        1,
    )
    assert buffer.keep_only({"a"}, max_prompt=2, max_tokens=2) == 1, (
        "one response of the two is too long"
    )
    assert buffer.keep_only({"a"}, max_prompt=2, max_tokens=1) == 1 and len(buffer) == 0


def test_a_replayed_group_is_recorded_with_what_it_weighs():
    replay, questions = replay_of(exp_unit="group")
    fresh = replay.draw(1, 4, questions.__next__).fresh
    replay.observe(1, [group(question, 1, 0) for question in fresh], {})
    (first, second) = replay.admit(
        replay.draw(2, 4, questions.__next__).stored, lambda rows: pytest.fail("looked")
    )
    first.effect = Effect(ratio_mean=0.5, group_mean=0.5)
    replay.observe(2, [], {})
    rows = list(replay.pool.replays)
    assert [(row.step, row.question) for row in rows] == [(2, first.question), (2, second.question)]
    assert all(
        (row.chosen, row.generated, row.tokens, row.reward) == (-1, 1, 4, 0.5) for row in rows
    )
    assert (
        len(rows[0].candidates) == 2
        and rows[0].effect.ratio_mean == 0.5
        and np.isnan(rows[1].effect.ratio_mean)
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"exp_unit": "token"},
            "trainer.exp_unit=token: must be one of trajectory, group, prefix, prompt",
        ),
        ({"exp_max_drift": 0}, "trainer.exp_max_drift=0: must be a finite number above 0, or null"),
        (
            {"exp_unit": "group", "experience_ratio": 1},
            "trainer.experience_ratio=1: must be below 1 with trainer.exp_unit",
        ),
        (
            {"exp_place": "dead"},
            "trainer.exp_place=dead: must be share, unless trainer.exp_unit=group and",
        ),
        (
            {"exp_place": "dead", "exp_unit": "group", "exp_rescue": True},
            "trainer.exp_place=dead: must be share, unl",
        ),
        (
            {"experience_max_groups": 0},
            "trainer.experience_max_groups=0: must be an integer of at least 1",
        ),
        ({"exp_rescue": "maybe"}, "trainer.exp_rescue=maybe: must be true or false"),
    ],
)
def test_a_wrong_key_is_one_line(keys, message):
    with pytest.raises(ValueError, match=message) as error:
        ExperienceConfig(8, **keys)
    assert "\n" not in str(error.value)


def test_wrong_groups_are_refused():
    with pytest.raises(
        ValueError, match="failures has 2 entries beside 1 successes: must be at most size=2"
    ):
        RolloutGroup("a", 2, (rollout(1),), failures=(rollout(0), rollout(0)))
    with pytest.raises(ValueError, match=r"failures\[0\] is a int: must be a Trajectory"):
        RolloutGroup("a", 2, (), failures=(3,))
    with pytest.raises(ValueError, match="rollouts has 1 entries: a group must have 2 or more"):
        StoredGroup("a", 1, (rollout(1),))
