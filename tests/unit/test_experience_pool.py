"""The rule that files a question case by case: buckets, retirement, duplicates, and what can be
drawn.
"""

import math

import invariants
import numpy as np
import pytest
from pool_groups import bucket_of, group, new_pool, success, tokens_of

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_bucket_manager import BucketState
from exgrpo.experience.experience_pool import ExperiencePool, Outcome
from exgrpo.experience.packing import pack
from exgrpo.experience.rules import released, reward_std
from exgrpo.experience.trajectory import RolloutGroup, Trajectory

STORED, RETIRED, SKIPPED = Outcome.STORED, Outcome.RETIRED, Outcome.SKIPPED


def test_a_tie_goes_to_the_even_count():
    groups = [group("q", 4, success(1)), group("q", 4, *[success(1)] * 3)]
    assert released(groups, 6) == [2, 4]  # 1.5 and 4.5


@pytest.mark.parametrize("rollout_n", [2, 3, 4, 7, 8, 16])
def test_partially_solved_is_neither_unsolved_nor_solved(rollout_n):
    for size in range(1, rollout_n + 1):
        groups = [group("q", size, *[success(1)] * solved) for solved in range(size + 1)]
        buckets = released(groups, rollout_n)
        assert buckets[0] == 0 and buckets[-1] == rollout_n
        assert all(1 <= bucket < rollout_n for bucket in buckets[1:-1])
        assert buckets == sorted(buckets)


def test_a_group_larger_than_k_is_refused_before_anything_changes():
    pool = new_pool()
    with pytest.raises(
        ValueError, match="group of question 'q' has 8 fresh and 1 replayed rows: must be at most 8"
    ):
        pool.observe(group("q", 8, success(1), replayed=1))
    assert pool.metrics()["pool_questions"] == 0


def test_partially_solved_is_stored_and_eligible():
    pool = new_pool()
    assert pool.observe(group("q", 8, success(1, 2), success(3))) is STORED
    assert (
        tokens_of(pool, "q") == [(1, 2), (3,)] and bucket_of(pool, "q") == 2 and pool.eligible == 1
    )
    assert pool.choose(5, np.random.default_rng(0)) == ["q"]
    assert pool.choose(5, np.random.default_rng(0), exclude={"q"}) == []


def test_a_group_that_lost_rollouts_does_not_retire():
    pool = ExperiencePool(ExperienceConfig(rollout_n=4))
    right = Trajectory([1], [-1.0], step=1)
    assert pool.observe(RolloutGroup("q", 1, (right,))) is Outcome.SKIPPED
    assert pool.observe(RolloutGroup("q", 3, (right,) * 3)) is Outcome.SKIPPED
    assert pool.observe(RolloutGroup("q", 3, (right,) * 3, replayed=1)) is Outcome.RETIRED


def test_all_correct_retires_for_good_with_its_trajectories():
    pool = new_pool()
    pool.observe(group("q", 8, success(1)))
    assert pool.observe(group("q", 7, *[success(2)] * 7, replayed=1)) is RETIRED
    assert (
        pool.metrics()["retired_questions"] == 1
        and pool.metrics()["pool_tokens"] == 0
        and pool.eligible == 0
    )
    with pytest.raises(KeyError, match="question 'q': it is retired"):
        pool.candidates("q")
    for again in (group("q", 8, success(1)), group("q", 8), group("q", 8, *[success(2)] * 8)):
        assert pool.observe(again) is SKIPPED
    assert pool.metrics()["pool_questions"] == 0
    assert pool.observe(group("never seen", 8, *[success(1)] * 8)) is RETIRED


@pytest.mark.parametrize(
    ("solved", "size", "replayed", "bucket"),
    [
        (3, 8, 0, 3),
        (0, 8, 0, 0),
        (0, 7, 1, 1),  # the replayed success counts
        (3, 7, 1, 4),
        (6, 7, 1, 7),
        (7, 7, 1, 8),
        (2, 5, 1, 4),  # two rollouts were lost: 3 of 6
    ],
)
def test_the_released_bucket_is_the_whole_groups_success_count(solved, size, replayed, bucket):
    assert released([group("q", size, *[success(1)] * solved, replayed=replayed)], 8) == [bucket]


def test_a_question_whose_rollouts_all_fail_stays_drawable():
    """The regime of weak models: most stored successes are lucky hits, and their questions fail
    when asked again.
    """
    pool = new_pool()
    assert pool.observe(group("q", 8)) is SKIPPED and pool.metrics()["pool_questions"] == 0
    pool.observe(group("q", 8, success(1), success(2), success(5)))
    assert pool.observe(group("q", 8)) is SKIPPED  # asked as a fresh question
    assert bucket_of(pool, "q") == 3 and pool.eligible == 1
    assert (
        pool.observe(group("q", 7, replayed=1)) is SKIPPED
    )  # replayed: its success is the group's only one
    assert bucket_of(pool, "q") == 1 and tokens_of(pool, "q") == [(1,), (2,), (5,)]
    assert pool.choose(1, np.random.default_rng(0)) == ["q"]


def test_the_bounds_gate_what_is_collected_and_not_what_is_drawn():
    pool = new_pool(experience_lbound=1, experience_rbound=3)
    assert pool.observe(group("q", 8, success(1))) is SKIPPED
    assert pool.metrics()["pool_questions"] == 0
    assert pool.observe(group("q", 8, *map(success, range(3)))) is STORED
    assert pool.observe(group("q", 8, *map(success, range(10, 14)))) is SKIPPED
    assert bucket_of(pool, "q") == 3 and pool.eligible == 1 and len(pool.candidates("q")) == 3
    pool.file("r", 8, success(1))  # as an import may
    assert pool.eligible == 2


def test_questions_that_a_saved_pool_has_under_zero_are_drawn_again_and_one_line_says_so(caplog):
    old = new_pool()
    for question in "abc":
        old.observe(group(question, 8, success(1)))
    state = old.snapshot()
    records = [
        (serial, name, pack(serial, each))
        for serial, name, each in state.records(0, state.next_serial)
    ]
    config, rest = (
        ExperienceConfig(rollout_n=8),
        (state.history, records, state.next_serial, state.counters),
    )
    same = ExperiencePool.restore(config, state.state, *rest)
    assert same.metrics() == old.metrics() and not caplog.messages
    fallen = BucketState(
        ["a", "b", "c"], [1, 0, 1], [0, 0, 1], []
    )  # as exp_difficulty=fresh saved them
    new = ExperiencePool.restore(config, fallen, *rest)
    assert [new.bucket(name) for name in "abc"] == [1, 1, 1] and new.eligible == 3
    (line,) = caplog.messages
    assert line.startswith(
        "exgrpo: 1 questions of the saved pool are filed under 0 successes, by a rule that is gone"
    )


def varied(question, *rewards, replayed=0, replayed_reward=1.0):
    return RolloutGroup(
        question, len(rewards), (), replayed, rewards=rewards, replayed_reward=replayed_reward
    )


def test_continuous_rewards_are_filed_by_how_much_they_vary_over_the_step():
    groups = [
        varied("same", 2, 2, 2, 2),  # 0
        varied("most", -3, 3, -3, 3),  # 3
        varied("half", -1.5, 1.5, -1.5, 1.5),  # 1.5
        varied("replayed", 0, 0, replayed=1, replayed_reward=1.5),  # sqrt(.5) = .7071: 1.89 of 8
    ]
    assert reward_std(groups, 8) == [0, 8, 4, 2]
    assert reward_std(groups[:1] * 3, 8) == [0, 0, 0] and reward_std([], 8) == []
    counted = [
        group("a", 8, *[success(1)] * 4),
        group("b", 8, success(1)),
        group("c", 8),
    ]  # .5, .3307, 0
    assert reward_std(counted, 8) == [8, 5, 0]


def test_with_continuous_rewards_the_most_varied_groups_are_collected_and_any_reward_is_kept():
    pool = new_pool(exp_difficulty="reward_std", exp_success_threshold=2)
    assert pool.buckets_of([varied("a", 0, 9), varied("b", 0, 3), varied("c", 1, 1)]) == [8, 3, 0]
    best = Trajectory([1], [-1.0], 1, 0.5, reward=9.0)
    assert pool.observe(RolloutGroup("a", 8, (best,), rewards=(9, *[0] * 7)), 8) is STORED
    assert pool.candidates("a")[0].reward == 9 and bucket_of(pool, "a") == 8 and pool.eligible == 1


def test_a_duplicate_is_recorded_anew_but_stored_once():
    pool = new_pool()
    pool.observe(group("q", 8, success(1, step=1), success(2, step=1)))
    pool.observe(group("q", 8, success(1, step=9, entropy=0.1), success(1, step=9, entropy=0.1)))
    old, new = pool.candidates("q")
    assert (old.tokens.tolist(), old.step) == ([2], 1)
    assert (new.tokens.tolist(), new.step, new.entropy, new.log_probs.tolist()) == (
        [1],
        9,
        0.1,
        [-2.25],
    )
    metrics = pool.metrics()
    assert (metrics["stored"], metrics["duplicates"], metrics["pool_trajectories"]) == (2, 2, 2)
    invariants.check(pool)


def test_the_beginning_of_a_trajectory_is_no_duplicate_of_it():
    pool = new_pool()
    pool.observe(group("q", 8, success(1, 2), success(1)))
    pool.observe(group("q", 8, success(1, 2, 3)))
    assert tokens_of(pool, "q") == [(1, 2), (1,), (1, 2, 3)] and pool.metrics()["duplicates"] == 0


@pytest.mark.parametrize(
    ("half", "count", "allowed"),
    [
        ("first_half", 6, "abc"),
        ("last_half", 6, "def"),
        ("first_half", 5, "ab"),
        ("last_half", 5, "cde"),
    ],
)
def test_a_half_is_of_the_eligible_questions_by_order_of_entry(half, count, allowed):
    pool = new_pool(exp_sample_range=half)
    for question in "abcdef"[:count]:
        pool.observe(group(question, 8, success(1)))
    pool.observe(group("a", 8, *map(success, range(5))))  # moving to another bucket is no new entry
    assert "".join(sorted(pool.choose(99, np.random.default_rng(0)))) == allowed
    without = pool.choose(99, np.random.default_rng(0), exclude=[allowed[0]])
    assert "".join(sorted(without)) == allowed[1:]


def test_draws_follow_the_bucket_weights_of_the_configuration():
    for keys, expected in (
        ({}, math.exp(-0.5)),
        ({"exp_bucket_sigma": 2.0}, math.exp(-0.125)),
        ({"exp_bucket_mean": 0.375}, math.exp(0.5)),
        ({"exp_bucket_manager": "linear"}, 3 / 4),
        ({"exp_bucket_manager": False}, 3.0),
    ):
        pool, rng, draws = new_pool(**keys), np.random.default_rng(0), 1500
        for question, solved in (("a", 3), ("b", 3), ("c", 3), ("d", 4)):
            pool.observe(group(question, 8, *[success(1)] * solved))
        share = sum(pool.choose(1, rng) != ["d"] for _ in range(draws)) / draws
        wanted = expected / (1 + expected)
        assert abs(share - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / draws), keys


def test_metrics_have_the_same_keys_always_and_count_bytes():
    pool = new_pool()
    keys = list(pool.metrics())
    pool.observe(group("q", 8, success(1, 2, 3)))
    metrics = pool.metrics()
    assert list(metrics) == keys and all(type(value) is float for value in metrics.values())
    assert [key for key in keys if key.startswith("bucket_")] == [
        f"bucket_{bucket}" for bucket in range(9)
    ]
    assert (metrics["pool_tokens"], metrics["pool_bytes"], metrics["bucket_1"]) == (
        3,
        3 * 8 + 200,
        1,
    )


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count=-1"):
        new_pool().choose(-1, np.random.default_rng(0))


def test_each_step_is_noted_with_what_the_caller_measured():
    pool = new_pool()
    pool.observe(group("a", 8, success(1)))
    metrics = pool.end_step(5, {"fresh_score": 0.25})
    (noted,) = pool.snapshot().history
    assert list(noted) == ["step", *metrics, "fresh_score"]
    assert (noted["step"], noted["fresh_score"]) == (5, 0.25)


def test_a_seeded_question_is_drawn_from_the_bucket_it_was_given():
    pool = new_pool()
    pool.file("a", 4, Trajectory.without_log_probs([1], 0))
    pool.file("a", 4, success(2))
    assert pool.metrics()["bucket_4"] == 1 and tokens_of(pool, "a") == [(1,), (2,)]
    pool.file("unsolved", 0, success(1))
    assert (
        sorted(pool.choose(9, np.random.default_rng(0))) == ["a", "unsolved"]
        and pool.bucket("unsolved") == 1
    )
    for bucket in (-1, 9):
        with pytest.raises(
            ValueError, match=f"bucket={bucket} of question 'b': must be between 0 and 8"
        ):
            pool.file("b", bucket, success(1))
    pool.observe(group("b", 8, *map(success, range(8))))
    with pytest.raises(ValueError, match="question 'b' is retired"):
        pool.file("b", 4, success(1))
    invariants.check(pool)


def test_a_refused_success_counts_for_difficulty_alone():
    pool = new_pool()
    assert pool.observe(RolloutGroup("a", 8, (success(1),), refused=3)) is Outcome.STORED
    assert pool.metrics()["bucket_4"] == 1
    assert pool.observe(RolloutGroup("b", 8, (), refused=3)) is Outcome.SKIPPED
    assert pool.observe(RolloutGroup("a", 8, (), refused=8)) is Outcome.RETIRED
    invariants.check(pool)
