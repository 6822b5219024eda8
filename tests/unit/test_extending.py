"""docs/extending.md: its examples are one file, and every one of them takes part through
its key.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory
from exgrpo.experience import rules
from exgrpo.experience.trajectory_selector import TokenScores
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import mixed_token_losses
from exgrpo.preflight.absolute_paths import make_absolute

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
CODE = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "my_rules.py").write_text(CODE)
    return lambda name: f"{tmp_path}/my_rules.py:{name}"


def success(step, length=2):
    return Trajectory(list(range(length)), [-0.5] * length, step, 0.5)


def test_each_key_has_a_heading_a_signature_and_an_example():
    keys = re.findall(
        r"`(?:trainer\.|actor_rollout_ref\.actor\.policy_loss\.)(exp_\w+|off_policy_\w+)`", PAGE
    )
    assert set(keys) == {
        "exp_bucket_manager",
        "exp_metric",
        "off_policy_reshape",
        "off_policy_loss",
        "exp_difficulty",
        "exp_retirement",
        "exp_eviction",
        "exp_question_choice",
        "exp_group_choice",
        "exp_same",
    }
    assert len(re.findall(r"^def ", CODE, re.MULTILINE)) == 11


def test_a_file_given_to_any_of_the_keys_is_the_commands_on_every_node(tmp_path, monkeypatch):
    keys = re.findall(r"`((?:trainer|actor_rollout_ref)\.\S*(?:exp|off_policy)_[a-z_]+)`", PAGE)
    assert len(set(keys)) == 10
    config = OmegaConf.create({})
    for key in keys:
        OmegaConf.update(config, key, "my_rules.py:rule")
    monkeypatch.chdir(tmp_path)
    make_absolute(config)
    assert {OmegaConf.select(config, key) for key in keys} == {f"{tmp_path}/my_rules.py:rule"}


def test_the_examples_rule_a_replay(mine):
    config = ExperienceConfig(
        rollout_n=4,
        experience_start_sratio=0,
        exp_bucket_manager=mine("hardest_first"),
        exp_metric=mine("least_changed"),
        exp_difficulty=mine("lenient"),
        exp_retirement=mine("nearly_solved"),
        exp_eviction=mine("longest"),
        experience_max_per_question=2,
    )
    replay = ExperienceReplay(config, ["a", "b", "c"])
    pool = replay.pool
    pool.observe(RolloutGroup("a", 4, (success(1, 2), success(1, 5))))
    pool.observe(RolloutGroup("a", 4, (success(2, 3),)))
    assert pool.bucket("a") == 1 and [len(each) for each in pool.candidates("a")] == [2, 3]
    pool.observe(RolloutGroup("b", 3, (success(1),)))
    assert pool.bucket("b") == 2  # one rollout was lost
    pool.observe(RolloutGroup("c", 4, (success(1),) * 3))
    assert pool.retired == ["c"]
    views = [TokenScores(np.ones(2), np.full(2, -0.5)), TokenScores(np.ones(3), np.full(3, -0.9))]
    choice = replay.choose({"a": pool.candidates("a")}, lambda candidates: views)
    assert len(choice.trajectories["a"]) == 2 and choice.passed_over_scores == [pytest.approx(0.4)]
    weights = rules.BUCKET_WEIGHTS.load("k", config.exp_bucket_manager)(
        np.array([1.0, 2.0]), 4, 0.5, 1.0
    )
    assert np.exp(weights[0] - weights[1]) == pytest.approx(2)


def test_the_example_states_its_traits_and_a_rule_without_them_has_neither(mine):
    stated, silent = (
        ExperienceConfig(4, exp_difficulty=mine(name)) for name in ("best_reward", "lenient")
    )
    assert (stated.bounded_rewards, stated.experience_rbound) == (True, 4)
    assert (silent.bounded_rewards, silent.experience_rbound) == (False, 3)
    with pytest.raises(
        ValueError, match=r"^trainer.exp_success_threshold=1.0: must be a number of at least"
    ):
        ExperienceConfig(4, exp_difficulty=mine("best_reward"), exp_success_threshold=1)
    pool = ExperienceReplay(stated, ["a"]).pool
    pool.observe(RolloutGroup("a", 4, (success(1),), rewards=(1.0, 0.0, 0.0, 0.0)))
    assert pool.bucket("a") == 4


def test_the_example_shapes_the_loss(mine):
    log_prob, past = torch.log(torch.tensor([[0.8, 0.2]])), torch.log(torch.tensor([[0.4, 0.4]]))
    settings = LossSettings(off_policy_reshape=mine("truncated"))
    ones = torch.ones(1, 2)
    losses, _ = mixed_token_losses(log_prob, past, ones, torch.tensor([True]), ones, settings)
    torch.testing.assert_close(losses, -torch.tensor([[1.0, 0.5]]))


def test_the_example_is_a_loss_of_replayed_tokens(mine):
    log_prob = torch.log(torch.tensor([[0.8], [0.2]]))
    settings = LossSettings(off_policy_loss=mine("successes_alone"))
    advantages, ones = torch.tensor([[0.5], [-0.5]]), torch.ones(2, 1)
    losses, _ = mixed_token_losses(
        log_prob, log_prob, advantages, torch.tensor([True, True]), ones, settings
    )
    torch.testing.assert_close(
        losses, torch.tensor([[-0.5 * np.log(0.8)], [0.0]], dtype=torch.float32)
    )
