"""The pool's bounds: which trajectory leaves first, by question, number, bytes, age and length."""

import math

import invariants
import numpy as np
import pytest
from pool_groups import group, new_pool, success, tokens_of

from exgrpo.experience.trajectory import RolloutGroup, Trajectory


def test_per_question_the_highest_entropy_leaves_first_then_the_oldest():
    pool = new_pool(experience_max_per_question=2)
    entropies = {1: 0.3, 2: math.nan, 3: 0.7, 4: 0.7}
    pool.observe(
        group("q", 8, *[success(token, entropy=value) for token, value in entropies.items()])
    )
    assert tokens_of(pool, "q") == [(1,), (4,)]
    pool.observe(group("q", 8, success(5, entropy=0.9)))  # the newest may be the worst
    assert tokens_of(pool, "q") == [(1,), (4,)]
    pool.observe(group("q", 8, success(6, entropy=0.1)))
    assert tokens_of(pool, "q") == [(1,), (6,)]
    assert pool.metrics()["evicted"] == 4


def test_overall_the_oldest_recording_leaves_first_and_an_emptied_question_with_it():
    pool = new_pool(experience_max_trajectories=3)
    pool.observe(group("a", 8, success(1)))
    pool.observe(group("b", 8, success(1), success(2)))
    pool.observe(group("a", 8, success(1)))  # recorded anew: now the newest
    pool.observe(group("c", 8, success(1)))
    assert tokens_of(pool, "b") == [(2,)]
    pool.observe(group("c", 8, success(2)))
    with pytest.raises(KeyError, match="question 'b': it is not in the pool"):
        pool.candidates("b")
    assert sorted(pool.choose(9, np.random.default_rng(0))) == ["a", "c"]
    assert pool.metrics()["evicted"] == 2
    invariants.check(pool)


def test_candidates_are_read_only_views_that_outlive_their_eviction():
    pool = new_pool(experience_max_trajectories=1)
    pool.observe(group("a", 8, success(1, 2)))
    first, again = pool.candidates("a")[0], pool.candidates("a")[0]
    assert np.shares_memory(first.tokens, again.tokens) and np.shares_memory(
        first.log_probs, again.log_probs
    )
    assert not first.tokens.flags.writeable and not first.log_probs.flags.writeable
    assert first.tokens.flags.aligned and first.log_probs.flags.aligned
    pool.observe(group("b", 8, success(3)))
    assert first.tokens.tolist() == [1, 2] and first.log_probs.tolist() == [-0.25, -0.25]


def test_the_bound_in_bytes_counts_tokens_and_what_python_adds():
    pool = new_pool(experience_max_bytes=2 * (200 + 3 * 8))
    for question in "abc":
        pool.observe(group(question, 8, success(1, 2, 3)))
    assert sorted(pool.choose(9, np.random.default_rng(0))) == ["b", "c"]
    pool.observe(
        group("b", 8, success(1, 2, 3, 4))
    )  # eight bytes too many: the oldest, which is b's, goes
    assert tokens_of(pool, "b") == [(1, 2, 3, 4)]
    assert pool.metrics()["pool_bytes"] == 200 + 4 * 8 and pool.metrics()["evicted_by_size"] == 3
    invariants.check(pool)


def test_what_is_too_old_for_the_next_step_leaves_at_the_end_of_this_one():
    pool = new_pool(experience_max_age=2)
    for step, question in ((1, "a"), (2, "b"), (3, "c")):
        pool.observe(RolloutGroup(question, 8, (Trajectory([step], [-1.0], step),)))
        metrics = pool.end_step(step, {})
    assert sorted(pool.choose(9, np.random.default_rng(0))) == [
        "b",
        "c",
    ]  # in step 4 a would be 3 steps old
    assert metrics["evicted_by_age"] == 1 and (metrics["age_median"], metrics["age_p95"]) == (0, 1)
    invariants.check(pool)


def test_only_known_questions_and_short_trajectories_are_kept():
    pool = new_pool()
    for question in "abc":
        pool.observe(group(question, 8, success(1), success(1, 2), success(1, 2, 3)))
    pool.observe(group("long", 8, success(1, 2, 3)))
    assert pool.keep_only({"b", "long"}, longest=2) == 8
    assert pool.choose(9, np.random.default_rng(0)) == ["b"] and tokens_of(pool, "b") == [
        (1,),
        (1, 2),
    ]
    assert pool.metrics()["retired_trajectories"] == 0
    invariants.check(pool)
