"""What a buffer refuses: trajectories, draws and settings, each in one line that names the
value.
"""

import math

import numpy as np
import pytest
from buffer_rows import leveled, right, wrong

from exgrpo.buffer import TrajectoryBuffer


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": "q"},
            "trajectory without 'rollout': must have prompt, rollout, reward, is_correct, entropy",
        ),
        (right(prompt=""), "prompt='': must be a non-empty string"),
        (
            right(prompt=[{"role": "user"}]),
            "prompt=.*: must be a non-empty string; render a chat's messages first",
        ),
        (right(prompt="\ud800"), r"prompt='\\ud800': must be valid Unicode"),
        (right(rollout=""), "rollout='': must be a string, and not empty"),
        (right(rollout=None), "rollout=None: must be a string"),
        (
            right(entropy=math.nan),
            "entropy=nan: must be a mean token entropy in nats, 0 or more, or None",
        ),
        (right(entropy=-1), "entropy=-1: must be"),
        (right(entropy=math.inf), "entropy=inf: must be"),
        (right(entropy="low"), "entropy=low: must be"),
        (right() | {"reward": math.nan}, "reward=nan: must be a finite number"),
        (right() | {"reward": None}, "reward=None: must be a finite number"),
        (
            right() | {"reward": 2},
            "reward=2: must be a finite number, and between 0 and 1 where it is correct",
        ),
        (wrong() | {"reward": math.inf}, "reward=inf: must be a finite number"),
        (right() | {"is_correct": 0.5}, "is_correct=0.5: must be True or False"),
        (
            right(tokens=[1, 2], log_probs=[-1.0]),
            "log_probs has 1 entries for 2 tokens: must be as many",
        ),
        (right(tokens=[]), "tokens has shape"),
        (right(tokens=[1], log_probs=[math.nan]), r"log_probs\[0\]=nan: must be finite"),
        (right(loss_mask=[True]), r"loss_mask has shape \(1,\) for 0 tokens"),
        (right(log_probs=[-1.0]), "log_probs has 1 entries without tokens"),
        (right(logprobs=[-1.0]), "logprobs: no such key; did you mean log_probs?"),
        (
            right(rollout={"prompt": "q"}),
            "rollout='': must be a string, and not empty where it is correct without tok",
        ),
        (right(rollout={"text": 3}), "rollout=3: must be a string"),
        (
            right(rollout={"prompt": [1, 2], "tokens": [3]}),
            r"prompt=\[1, 2\]: must be a non-empty string",
        ),
        (right(rollout={"tokens": [1], "mask": [1]}), "mask: no such key; did you mean loss_mask?"),
        (
            right(rollout={"tokens": [1], "logprobs": [0]}),
            "logprobs: no such key; did you mean log_probs?",
        ),
        (right(step=-1), "step=-1: must be an integer of at least 0"),
    ],
)
def test_a_bad_trajectory_changes_nothing(row, message):
    buffer = TrajectoryBuffer()
    with pytest.raises(ValueError, match=message):
        buffer.add(row)
    assert len(buffer) == len(buffer.bucketer) == buffer.policy_snapshot == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size=0: must be an integer of at least 1"),
        ({"size": 2.5}, "size=2.5: must be"),
        ({"strategy": "low"}, "strategy='low': must be one of medium_difficulty_low_entropy, "),
        (
            {"difficulty_range": (0.7, 0.3)},
            r"difficulty_range=\(0.7, 0.3\): must be \(low, high\) with 0 <= low <= high",
        ),
        ({"difficulty_range": (0, 30)}, r"difficulty_range=\(0, 30\): must be"),
        ({"difficulty_range": (0, math.nan)}, r"difficulty_range=\(0.0, nan\): must be"),
        ({"difficulty_range": 0.5}, r"difficulty_range=0.5: must be two numbers, \(low, high\)"),
        ({"difficulty_range": (1,)}, r"difficulty_range=\(1,\): must be two numbers"),
        ({"entropy_percentile": 30}, "entropy_percentile=30: must be None or one of 25, 50, 75"),
        (
            {"difficulty_range": (0.9, 1)},
            "with difficulty_range=.0.9, 1.0., entropy_percentile=25.0: none of 1 traj",
        ),
    ],
)
def test_a_bad_sample_leaves_the_generator(arguments, message):
    buffer = leveled([0.5])
    before = buffer.rng.bit_generator.state
    with pytest.raises(ValueError, match=message):
        buffer.sample(**arguments)
    assert buffer.rng.bit_generator.state == before


def test_an_empty_buffer_says_so():
    with pytest.raises(ValueError, match="none of 0 trajectories is left to draw"):
        TrajectoryBuffer().sample()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_size": 0}, "max_size=0: must be an integer of at least 1"),
        ({"difficulty_tiers": 0}, "difficulty_tiers=0: must be an integer of at least 1"),
        ({"max_per_question": None}, "max_per_question=None: must be"),
        ({"max_age": 0}, "max_age=0: must be an integer of at least 1, or None"),
        (
            {"entropy_percentiles": [25, 101]},
            "entropy_percentiles holds 101.0: must be between 0 and 100",
        ),
        (
            {"seed": np.random.Generator(np.random.MT19937(0))},
            "seed=.*: must be an integer or a generator over PCG64",
        ),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TrajectoryBuffer(**settings)
