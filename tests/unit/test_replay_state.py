"""What is remembered beside the pool comes back: asked for by the next draws, not by equal dictionaries."""

import json

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.replay_state import ReplayState


def start(**keys):
    return ReplayState.start(ExperienceConfig(rollout_n=8, **keys))


def test_the_next_draws_are_those_of_an_unbroken_run():
    state = start()
    state.rng.random(7)
    state.mixing, state.deferred, state.skipped = True, ["q1", "q2"], 3
    loaded = ReplayState.from_json(json.loads(json.dumps(state.to_json())))
    assert (loaded.mixing, loaded.deferred, loaded.skipped) == (True, ["q1", "q2"], 3)
    assert loaded.rng.random(5).tolist() == state.rng.random(5).tolist()
    loaded.deferred.append("q3")
    assert state.deferred == ["q1", "q2"]


def test_a_state_saved_before_retired_questions_were_skipped_skips_none():
    saved = start().to_json()
    del saved["skipped"]
    assert ReplayState.from_json(saved).skipped == 0


def test_delayed_start_and_none():
    assert not start().mixing
    assert start(experience_start_sratio=0).mixing


def test_seeds_differ():
    assert start(exp_seed=1).rng.random() != start(exp_seed=2).rng.random() != start(exp_seed=1).rng.random() + 1
