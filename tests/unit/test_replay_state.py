"""What is remembered beside the pool comes back: asked for by the next draws, not by equal dictionaries."""

import pytest

from exgrpo.config import ExperienceConfig
from exgrpo.experience.replay_state import ReplayState


def start(**keys):
    return ReplayState.start(ExperienceConfig(rollout_n=8, **keys))


def test_the_next_draws_are_those_of_an_unbroken_run(tmp_path):
    state = start()
    state.rng.random(7)
    state.mixing, state.deferred = True, ["q1", "q2"]
    state.save(tmp_path / "state.json")
    loaded = ReplayState.load(tmp_path / "state.json")
    assert (loaded.mixing, loaded.deferred) == (True, ["q1", "q2"])
    assert loaded.rng.random(5).tolist() == state.rng.random(5).tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_delayed_start_and_none():
    assert not start().mixing
    assert start(experience_start_sratio=0).mixing


def test_seeds_differ():
    assert start(exp_seed=1).rng.random() != start(exp_seed=2).rng.random() != start(exp_seed=1).rng.random() + 1


@pytest.mark.parametrize("text", ["", "{", '{"mixing": true}', '{"mixing": true, "rng": 3, "deferred": []}'])
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"state\.json: not a saved replay state"):
        ReplayState.load(path)
