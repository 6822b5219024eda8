"""ExperienceReplay: one step after another, as a loop would take them; what it draws, chooses,
keeps and remembers.
"""

import json

import numpy as np
import pytest

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory
from exgrpo.experience.experience_helpers import ratio_metrics
from exgrpo.experience.trajectory_selector import Choice, TokenScores

K = 4
QUESTIONS = [f"q{number}" for number in range(12)]


class Data:
    """The questions in order, epoch after epoch."""

    def __init__(self):
        self.place = 0

    def __call__(self):
        epoch, place = divmod(self.place, len(QUESTIONS))
        self.place += 1
        return QUESTIONS[place], epoch > 0 and place == 0


def replay_of(**keys):
    return ExperienceReplay(ExperienceConfig(rollout_n=K, **keys), QUESTIONS)


def success(step, token=1, **fields):
    return Trajectory([token, step], [-0.5, -0.25], step, **fields)


def look(candidates):
    """The later a trajectory was written, the surer the current policy is of it."""
    return [
        TokenScores(np.full(len(t), 1 / (1 + t.step)), np.full(len(t), -0.1)) for _, t in candidates
    ]


def step_of(replay, data, step, solved, size=6):
    """A whole step, each question solved by so many fresh rollouts."""
    drawn = replay.draw(step, size, data)
    choice = replay.choose(replay.candidates(drawn.replayed), look)
    groups = []
    for question in drawn.replayed + drawn.fresh:
        replayed = int(question in choice.trajectories)
        successes = tuple(success(step, token) for token in range(solved))
        groups.append(RolloutGroup(question, K - replayed, successes, replayed))
    return drawn, choice, replay.observe(step, groups, choice.metrics(step))


def test_mixing_begins_after_a_step_that_is_solved_often_enough_and_never_ends():
    replay, data = replay_of(experience_start_sratio=0.3), Data()
    drawn, _, metrics = step_of(replay, data, 1, solved=1)  # a quarter
    assert not drawn.replayed and replay.pool.trajectories == 0 and metrics["fresh_score"] == 0.25
    drawn, _, metrics = step_of(replay, data, 2, solved=2)
    assert not drawn.mixed and metrics["mixing"] == 0 and replay.pool.trajectories == 0
    drawn, choice, metrics = step_of(replay, data, 3, solved=2)  # the first that is collected
    assert (
        drawn.mixed
        and metrics["mixing"] == 1
        and not drawn.replayed
        and replay.pool.trajectories == 12
    )
    drawn, choice, metrics = step_of(replay, data, 4, solved=0)  # the first that replays
    assert (
        drawn.mixed
        and metrics["mixing"] == 1
        and len(drawn.replayed) == 3 == len(choice.trajectories)
    )
    assert replay.mixing and step_of(replay, data, 5, solved=0)[0].mixed


def test_the_metrics_of_a_step_with_several_choices_are_of_all_of_them():
    replay = replay_of()
    for question, steps in (("a", (1, 2)), ("b", (4,)), ("c", (3, 6))):
        for step in steps:
            replay.pool.file(question, 2, success(step, token=step))
    parts = [["a"], ["b", "c"]]
    choices = [replay.choose(replay.candidates(part), look) for part in parts]
    (whole,) = [replay.choose(replay.candidates(["a", "b", "c"]), look)]
    together = Choice.together(choices).metrics(8)
    assert together == whole.metrics(8) and whole.metrics(8) != choices[1].metrics(8)
    assert together["replayed_groups"] == 3 and together["replay_age"] == 4
    assert together["replay_age_p95"] == pytest.approx(5.8)  # of 2, 4 and 6
    assert Choice.together([]).metrics(8).keys() == whole.metrics(8).keys()


def test_the_replayed_share_is_rounded_down_as_a_decimal():
    questions = [f"q{number}" for number in range(100)]
    replay = ExperienceReplay(
        ExperienceConfig(rollout_n=K, experience_ratio=0.58, experience_start_sratio=0), questions
    )
    for question in questions[:40]:
        replay.pool.file(question, 2, success(1))
    replay.observe(1, [RolloutGroup(questions[0], K, (success(1),))], {})
    drawn = replay.draw(2, 50, lambda: (questions.pop(), False))
    assert len(drawn.replayed) == 29  # in binary .58 * 50 is 28.999999999999996


def test_without_experience_nothing_is_replayed_or_kept():
    replay, data = replay_of(experience=False, experience_start_sratio=0), Data()
    for step in range(1, 4):
        drawn, _, metrics = step_of(replay, data, step, solved=2)
        assert (
            not drawn.replayed
            and len(drawn.fresh) == 6
            and not drawn.mixed
            and metrics["pool_trajectories"] == 0
        )


def test_no_question_stands_in_a_step_twice_and_none_is_thrown_away():
    replay, data = replay_of(experience_start_sratio=0), Data()
    fresh = []
    for step in range(1, 30):
        drawn, _, _ = step_of(replay, data, step, solved=2)
        asked = drawn.replayed + drawn.fresh
        assert len(asked) == len(set(asked)) == 6
        fresh += drawn.fresh
    waiting = replay.state()["deferred"]
    assert sorted(fresh + waiting) == sorted((QUESTIONS * 20)[: data.place])


def test_a_second_draw_of_a_step_is_fresh_and_new_to_it():
    replay, data = replay_of(experience_start_sratio=0), Data()
    step_of(replay, data, 1, solved=2)
    first = replay.draw(2, 6, data)
    second = replay.draw(2, 3, data)
    assert len(first.replayed) == 3 and not second.replayed and second.mixed
    assert len({*first.replayed, *first.fresh, *second.fresh}) == 9


def test_draws_ahead_leave_out_what_is_in_flight_and_have_their_share():
    replay, data = replay_of(experience_start_sratio=0), Data()
    step_of(replay, data, 1, solved=2)  # all six may be replayed
    out = []
    for _ in range(3):  # in one step
        drawn = replay.draw(2, 4, data, in_flight=out)
        assert len(drawn.replayed) == 2 and drawn.mixed
        assert (
            not {*drawn.replayed, *drawn.fresh} & set(out)
            and len({*drawn.replayed, *drawn.fresh}) == 4
        )
        out += drawn.replayed + drawn.fresh
    with pytest.raises(RuntimeError, match="step 2 needs 1 more questions, 0 are not in it yet"):
        replay.draw(2, 1, data, in_flight=out)
    assert replay.draw(2, 2, data, in_flight=out[4:]).replayed  # the first draw has come back


def test_a_step_larger_than_the_data_says_so():
    with pytest.raises(RuntimeError, match="step 1 needs 13 more questions, 12 are not in it yet"):
        replay_of().draw(1, 13, Data())


@pytest.mark.parametrize(("mode", "step"), [("argmin", 2), ("argmax", 1)])
def test_the_current_policy_decides(mode, step):
    """What was recorded says the opposite."""
    candidates = {"a": (success(1, entropy=0.1), success(2, entropy=0.9))}
    choice = replay_of(exp_select_mode=mode).choose(candidates, look)
    assert choice.trajectories["a"].step == step
    scores = [1 / 2, 1 / 3] if mode == "argmax" else [1 / 3, 1 / 2]
    assert choice.chosen_scores + choice.passed_over_scores == pytest.approx(scores)


def test_a_guarded_candidate_is_passed_over_and_a_question_may_be_left_without():
    replay = replay_of(experience_start_sratio=0, exp_max_drift=2.0)
    steady, wild = success(1, 1), Trajectory([2, 2], [-9.0, -0.1], 1)
    choice = replay.choose(
        {"a": (wild, steady), "b": (wild,)},
        lambda pairs: [TokenScores(np.ones(2), np.full(2, -0.3)) for _ in pairs],
    )
    assert choice.trajectories == {"a": steady} and (
        choice.scored,
        choice.guarded,
        choice.candidates,
    ) == (3, 2, 3)


def test_lone_candidates_and_random_choice_ask_nobody():
    def nobody(candidates):
        raise AssertionError("the policy was asked")

    alone = replay_of().choose({"a": (success(1),)}, nobody)
    assert alone.trajectories["a"].step == 1 and alone.scored == 0
    several = {"a": tuple(success(step) for step in range(9))}
    assert (
        len(
            {
                replay_of(exp_metric="random", exp_seed=n)
                .choose(several, nobody)
                .trajectories["a"]
                .step
                for n in range(20)
            }
        )
        > 3
    )


def test_scores_are_of_the_policys_own_tokens():
    tools = Trajectory([1, 2, 3], [-0.1, -0.2, -0.3], 1, loss_mask=[1, 0, 1])
    plain = Trajectory([1, 2, 4], [-0.1, -0.2, -0.3], 1)
    views = {tools.key: [0.1, 9.0, 0.1], plain.key: [0.2, 0.2, 0.2]}
    choice = replay_of().choose(
        {"a": (plain, tools)},
        lambda pairs: [TokenScores(np.array(views[t.key]), np.full(3, -0.5)) for _, t in pairs],
    )
    assert choice.trajectories["a"] is tools and choice.chosen_scores == [pytest.approx(0.1)]


def test_a_wrong_number_of_scores_is_refused():
    with pytest.raises(ValueError, match="scorer gave 1 scores of 2 candidates: must be one each"):
        replay_of().choose(
            {"a": (success(1), success(2))}, lambda pairs: [TokenScores(np.ones(2), np.ones(2))]
        )


@pytest.mark.parametrize("start", [0, 0.4])
def test_the_next_steps_after_a_restore_are_those_of_an_unbroken_run(start):
    """Mixing that has begun has begun for good."""
    replay, data = replay_of(experience_start_sratio=start, exp_metric="random"), Data()
    for step in range(1, 6):
        step_of(replay, data, step, solved=2)
    other, place = (
        ExperienceReplay(replay.config, QUESTIONS, replay.pool),
        Data(),
    )  # its saved form has its own tests
    other.restore(json.loads(json.dumps(replay.state())))
    place.place = data.place
    drawn = replay.draw(6, 6, data)
    assert other.draw(6, 6, place) == drawn and drawn.replayed and drawn.mixed
    assert other.rng.random() == replay.rng.random()


def test_seeds_differ_and_a_generator_may_be_shared():
    assert replay_of(exp_seed=1).rng.random() != replay_of(exp_seed=2).rng.random()
    rng = np.random.default_rng(5)
    assert ExperienceReplay(ExperienceConfig(rollout_n=K), QUESTIONS, rng=rng).rng is rng


def test_ratios_by_hand():
    metrics = ratio_metrics(np.log([0.25, 1.0, 1.0, 1.0, 3.0]).astype(np.float32))
    assert metrics["ratio_mean"] == pytest.approx(1.25, rel=1e-6)
    assert metrics["ratio_median"] == pytest.approx(1)
    assert metrics["ratio_ess"] == pytest.approx(6.25**2 / (5 * 12.0625), rel=1e-6)
    assert metrics["ratio_beyond_2"] == pytest.approx(2 / 5)  # below 1/2 and above 2
    assert 0.25 < metrics["ratio_p05"] < 1 < metrics["ratio_p95"] < 3


def test_nothing_replayed_has_the_same_keys():
    none = ratio_metrics(np.empty(0, np.float32))
    assert list(none) == list(ratio_metrics(np.zeros(3, np.float32)))
    assert none["ratio_mean"] == 1 and none["ratio_beyond_2"] == 0
    empty, some = (
        replay_of().choose({}, look),
        replay_of().choose({"a": (success(1), success(2))}, look),
    )
    assert list(empty.metrics(3)) == list(some.metrics(3)) and not any(empty.metrics(3).values())
    assert some.metrics(3)["replay_age"] == 1 and some.metrics(3)["candidates_scored"] == 2
