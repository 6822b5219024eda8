"""How often a step replays, what it asks the buffer for, and that the buffer's generator is all its
state.
"""

import math

import pytest

from exgrpo.buffer import SelectiveReplay, TrajectoryBuffer


def filled(levels=(0.0, 0.25, 0.5, 0.75, 1.0), seed=0):
    """A question at each level, with trajectories of entropy 0.2 and 0.4; at level 0 with none."""
    buffer = TrajectoryBuffer(seed=seed)
    for level in levels:
        for number in range(8):
            correct = number >= 8 - 8 * level
            row = {
                "prompt": f"q{level}",
                "rollout": f"r{number}",
                "reward": float(correct),
                "is_correct": correct,
            }
            buffer.add(row | {"entropy": 0.2 if number % 2 else 0.4})
    return buffer


def test_the_share_of_steps_is_the_probability():
    buffer, replay, steps = filled(), SelectiveReplay(replay_probability=0.3), 2000
    count = sum(replay.choose(buffer, 1) is not None for _ in range(steps))
    assert abs(count - 0.3 * steps) < 4 * math.sqrt(steps * 0.21)
    assert all(
        SelectiveReplay(replay_probability=0.0).choose(buffer, 1) is None for _ in range(100)
    )
    assert all(SelectiveReplay(replay_probability=1.0).choose(buffer, 1) for _ in range(100))


@pytest.mark.parametrize(
    ("strategy", "prompts", "entropies"),
    [
        ("entropy_guided", {"q0.5"}, {0.2}),
        ("difficulty_guided", {"q0.5"}, {0.2, 0.4}),
        ("uniform", {"q0.25", "q0.5", "q0.75", "q1.0"}, {0.2, 0.4}),
    ],
)
def test_what_each_strategy_draws(strategy, prompts, entropies):
    buffer, replay = filled(), SelectiveReplay(strategy, replay_probability=1.0)
    batches = [replay.choose(buffer, 2) for _ in range(60)]
    assert {prompt for batch in batches for prompt in batch.prompts} == prompts
    assert {entropy for batch in batches for entropy in batch.entropies} == entropies


def test_a_wider_range_and_scores_reach_the_buffer():
    replay = SelectiveReplay(replay_probability=1.0, medium_difficulty_range=(0.25, 0.75))
    batch = replay.choose(filled(), 9, scores=lambda candidates: -candidates.entropies)
    assert sorted(batch.prompts) == ["q0.25", "q0.5", "q0.75"] and set(batch.entropies) == {0.4}


def test_nothing_to_replay_is_none_and_costs_one_number():
    empty, other = TrajectoryBuffer(seed=3), TrajectoryBuffer(seed=3)
    replay = SelectiveReplay(replay_probability=1.0)
    assert replay.choose(empty, 4) is None and replay.choose(filled((1.0,)), 4) is None
    other.rng.random()
    assert empty.rng.bit_generator.state == other.rng.bit_generator.state


def test_a_loaded_buffer_goes_on_with_the_same_steps(tmp_path):
    buffer, replay = filled(seed=5), SelectiveReplay("uniform", replay_probability=0.5)
    buffer.save(tmp_path / "b")
    loaded = TrajectoryBuffer.load(tmp_path / "b")
    steps = [
        [(b.prompts, b.texts) if (b := replay.choose(each, 2)) else None for _ in range(30)]
        for each in (buffer, loaded)
    ]
    assert steps[0] == steps[1] and None in steps[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"strategy": "best"},
            "strategy='best': must be one of entropy_guided, difficulty_guided, uniform",
        ),
        ({"replay_probability": 1.5}, "replay_probability=1.5: must be between 0 and 1"),
        ({"replay_probability": math.nan}, "replay_probability=nan: must be"),
        (
            {"medium_difficulty_range": (0.7, 0.3)},
            r"medium_difficulty_range=\(0.7, 0.3\): must be \(low, high\)",
        ),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        SelectiveReplay(**settings)
