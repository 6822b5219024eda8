"""Levels and tiers of difficulty against means taken by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.buffer import DifficultyBucketer


def of(correct=True, prompt="q", rollout="a b c", **more):
    return {"prompt": prompt, "rollout": rollout, "is_correct": correct, **more}


def test_the_level_is_the_success_rate_of_the_window_alone():
    bucketer = DifficultyBucketer(window_size=3)
    levels = [bucketer.observe(of(correct)) for correct in (True, False, False, False, True)]
    assert levels == [1, 1 / 2, 1 / 3, 0, 1 / 3]
    assert bucketer.observe(of(True, "other")) == 1 and bucketer.level("q") == 1 / 3
    assert len(bucketer) == 2 and "q" in bucketer and "r" not in bucketer


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 12))
def test_any_window_is_a_mean_of_its_latest(outcomes, size):
    bucketer = DifficultyBucketer(window_size=size)
    for outcome in outcomes:
        level = bucketer.observe(of(np.bool_(outcome)))
    assert level == sum(outcomes[-size:]) / len(outcomes[-size:])


@pytest.mark.parametrize("tiers", [1, 2, 5, 8])
def test_tiers_are_equal_ranges_and_a_boundary_opens_the_higher_one(tiers):
    values = iter([tier / tiers for tier in range(tiers)] + [1.0, math.nextafter(1 / tiers, 0)])
    bucketer = DifficultyBucketer(lambda trajectory: next(values), window_size=1)
    tier_of = []
    for _ in range(tiers + 2):
        bucketer.observe(of())
        tier_of.append(bucketer.tier("q", tiers))
    assert tier_of == [*range(tiers), tiers - 1, 0]


def test_measures_by_name():
    measured = {
        "question_length": (of(prompt="x" * 200), 0.5),
        "token_count": (of(tokens=np.arange(500), rollout="two words"), 0.5),
        "has_code": (of(prompt="What does it print?\n```\nprint(1)\n```"), 1),
    }
    for metric, (trajectory, level) in measured.items():
        assert DifficultyBucketer(metric).observe(trajectory) == level
    assert (
        DifficultyBucketer("token_count").observe(of(rollout="a b c d")) == 4 / 504
    )  # words, without tokens
    assert DifficultyBucketer("has_code").observe(of(prompt="What is a class?")) == 0
    assert (
        DifficultyBucketer("has_code").observe(of(prompt="What is f(1)?\ndef f(x):\n    return x"))
        == 1
    )


def test_a_function_measures_what_it_likes():
    bucketer = DifficultyBucketer(lambda trajectory: trajectory["grade"] / 12)
    assert bucketer.observe(of(grade=3)) == 0.25
    assert bucketer.observe(of(grade=9)) == 0.5


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_a_measure_out_of_range_changes_nothing(value):
    bucketer = DifficultyBucketer(lambda trajectory: trajectory["value"])
    bucketer.observe(of(value=0.5))
    with pytest.raises(
        ValueError, match=f"metric of question 'q' is {value}: must be between 0 and 1"
    ):
        bucketer.observe(of(value=value))
    assert bucketer.windows() == {"q": [0.5]}


def test_windows_are_restored_and_go_on():
    first, second = DifficultyBucketer(window_size=3), DifficultyBucketer(window_size=3)
    for correct in (True, True, False):
        first.observe(of(correct))
    second.restore(first.windows())
    assert [each.observe(of(False)) for each in (first, second)] == [1 / 3, 1 / 3]
    second.clear()
    assert len(second) == 0


def test_bad_arguments_are_named():
    allowed = (
        "must be one of correctness_rate, question_length, token_count, has_code, or a function"
    )
    with pytest.raises(ValueError, match=f"metric='length': {allowed}"):
        DifficultyBucketer("length")
    for size in (0, -1, 2.5, True):
        with pytest.raises(
            ValueError, match=f"window_size={size}: must be an integer of at least 1"
        ):
            DifficultyBucketer(window_size=size)
