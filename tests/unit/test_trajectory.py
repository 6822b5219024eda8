"""Trajectory and RolloutGroup: what they refuse, and that nobody can change them."""

import dataclasses
import math

import numpy as np
import pytest

from exgrpo.experience.trajectory import RolloutGroup, Trajectory


def test_types_are_those_that_are_stored():
    trajectory = Trajectory([5, 6, 7], [-0.5, -1.0, 0.0], np.int64(3), np.float32(0.25))
    assert trajectory.tokens.dtype == np.int32 and trajectory.tokens.tolist() == [5, 6, 7]
    assert trajectory.log_probs.dtype == np.float32 and trajectory.log_probs.tolist() == [
        -0.5,
        -1.0,
        0.0,
    ]
    assert (type(trajectory.step), trajectory.step) == (int, 3)
    assert (type(trajectory.entropy), trajectory.entropy) == (float, 0.25)
    assert len(trajectory) == 3
    assert math.isnan(Trajectory([1], [-1.0], 0).entropy)


def test_arrays_are_read_only_copies_and_the_callers_stay_writable():
    tokens, log_probs = np.array([1, 2], np.int32), np.array([-1, -2], np.float32)
    trajectory = Trajectory(tokens, log_probs, 0)
    tokens[0], log_probs[0] = 9, -9
    assert trajectory.tokens.tolist() == [1, 2] and trajectory.log_probs.tolist() == [-1, -2]
    for array in (trajectory.tokens, trajectory.log_probs):
        with pytest.raises(ValueError):
            array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        trajectory.step = 1


def test_the_key_is_that_of_the_tokens_alone():
    assert (
        Trajectory([1, 2], [-1.0, -2.0], 0).key
        == Trajectory(np.array([1, 2], np.uint8), [-3.0, -4.0], 5, 1.0).key
    )
    assert Trajectory([1, 2], [-1.0, -2.0], 0).key != Trajectory([2, 1], [-1.0, -2.0], 0).key
    assert Trajectory([1], [-1.0], 0).key != Trajectory([1, 0], [-1.0, -1.0], 0).key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [[1, 2]]}, r"tokens has shape \(1, 2\)"),
        ({"tokens": np.zeros(0, np.int32)}, r"tokens has shape \(0,\)"),
        ({"tokens": [1.0, 2.0]}, "tokens has type float64"),
        ({"tokens": [True, False]}, "tokens has type bool"),
        ({"tokens": [1, -2]}, "tokens holds -2"),
        ({"tokens": [1, 2**31]}, "tokens holds 2147483648"),
        ({"tokens": [1, 2, 3]}, "log_probs has 2 entries for 3 tokens"),
        ({"log_probs": [-1, -2]}, "log_probs has type int64"),
        ({"log_probs": [-1.0, math.nan]}, r"log_probs\[1\]=nan"),
        ({"log_probs": [-math.inf, -1.0]}, r"log_probs\[0\]=-inf"),
        ({"log_probs": [-1e300, -1.0]}, r"log_probs\[0\]=-1e\+300"),
        ({"log_probs": [-1.0, 0.01]}, r"log_probs\[1\]=0.01"),
        ({"step": -1}, "step=-1"),
        ({"step": 1.5}, "step=1.5"),
        ({"entropy": math.inf}, "entropy=inf"),
        ({"entropy": -0.5}, "entropy=-0.5"),
    ],
)
def test_a_bad_value_is_named(changes, message):
    good = {"tokens": [1, 2], "log_probs": [-1.0, -2.0], "step": 0, "entropy": 0.5}
    Trajectory(**good)
    with pytest.raises(ValueError, match=message):
        Trajectory(**{**good, **changes})


def test_rounding_above_zero_passes():
    assert Trajectory([1], [5e-4], 0, -1e-6).log_probs[0] == np.float32(5e-4)


def test_a_group_may_hold_the_same_success_twice():
    success = Trajectory([1], [-1.0], 0)
    group = RolloutGroup("q", 7, [success, success], replayed=1)
    assert group.successes == (success, success) and (group.size, group.replayed) == (7, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": ""}, "question=''"),
        ({"question": 3}, "question=3"),
        ({"size": 0}, "size=0"),
        ({"size": 1}, "successes has 2 entries"),
        ({"size": 2.0}, "size=2.0"),
        ({"rewards": (1.0, 1.0)}, "rewards has 2 entries: must be size=4, or none"),
        ({"successes": ("text",)}, r"successes\[0\] is a str"),
        ({"replayed": 2}, "replayed=2"),
        ({"replayed": -1}, "replayed=-1"),
    ],
)
def test_a_bad_group_is_named(changes, message):
    success = Trajectory([1], [-1.0], 0)
    good = {"question": "q", "size": 4, "successes": (success, success)}
    RolloutGroup(**good)
    with pytest.raises(ValueError, match=message):
        RolloutGroup(**{**good, **changes})


def test_without_log_probs_says_so_and_the_door_stays_shut_for_nan():
    unknown = Trajectory.without_log_probs([1, 2], step=3, entropy=0.5)
    assert not unknown.has_log_probs and Trajectory([1], [-1.0], 0).has_log_probs
    assert np.isnan(unknown.log_probs).all() and unknown.log_probs.dtype == np.float32
    assert (unknown.tokens.tolist(), unknown.step, unknown.entropy) == ([1, 2], 3, 0.5)
    with pytest.raises(ValueError, match=r"log_probs\[0\]=nan"):
        Trajectory([1, 2], [float("nan")] * 2, 0)
    with pytest.raises(ValueError, match="tokens has shape"):
        Trajectory.without_log_probs([], 0)


def test_a_token_outside_the_vocabulary_is_named():
    Trajectory([1, 9], [-1.0, -1.0], 0).check_vocabulary(10)
    with pytest.raises(
        ValueError, match="tokens holds 9: must be below 9, the size of the vocabulary"
    ):
        Trajectory([1, 9], [-1.0, -1.0], 0).check_vocabulary(9)


def test_refused_successes_count_as_solved():
    group = RolloutGroup("q", 4, (Trajectory([1], [-1.0], 0),), refused=2)
    assert group.solved == 3
    with pytest.raises(
        ValueError, match="successes has 1 entries and refused is 4: must be at most size=4"
    ):
        RolloutGroup("q", 4, (Trajectory([1], [-1.0], 0),), refused=4)
