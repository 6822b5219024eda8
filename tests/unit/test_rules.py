"""Open tables: named rules, rules of others by reference, and one line for what is neither, before
anything runs.
"""

import math

import numpy as np
import pytest
import torch

from exgrpo import ExperienceConfig, ExperiencePool, RolloutGroup, Trajectory, bucket_weights
from exgrpo.experience import rules
from exgrpo.experience.trajectory_selector import TrajectorySelector
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import OFF_POLICY_RESHAPES, ON_POLICY_RESHAPES, mixed_token_losses
from exgrpo.open_table import file_of, is_reference

RULES = """
import torch
def hardest_first(successes, rollout_n, mean, sigma):
    return -successes
def longest(entropies_T, log_probs_T, trajectory):
    return -len(trajectory)
def always_two(groups, rollout_n):
    return [2] * len(groups)
def half_is_enough(group, rollout_n):
    return group.solved * 2 >= rollout_n
def shortest_first(trajectory):
    return -len(trajectory)
def truncated(log_ratio, log_prob, weight, pow_exp):
    return torch.exp(log_ratio).clamp(max=1)
def takes_nothing():
    return 0
number = 3
def off_the_scale(groups, rollout_n):
    return [99 for _ in groups]
def between(groups, rollout_n):
    return [1.5 for _ in groups]
def too_few(groups, rollout_n):
    return [1 for _ in groups][1:]
def of_one(groups, rollout_n):
    return 1
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "my_rules.py").write_text(RULES)
    return lambda name: f"{tmp_path}/my_rules.py:{name}"


def success(*tokens, step=1, entropy=0.5):
    return Trajectory(list(tokens), [-0.5] * len(tokens), step, entropy)


def test_rules_of_another_file_take_part_in_every_decision(mine):
    config = ExperienceConfig(
        rollout_n=4,
        exp_bucket_manager=mine("hardest_first"),
        exp_metric=mine("longest"),
        exp_difficulty=mine("always_two"),
        exp_retirement=mine("half_is_enough"),
        exp_eviction=mine("shortest_first"),
        experience_max_per_question=2,
    )
    pool = ExperiencePool(config)
    pool.observe(RolloutGroup("a", 4, (success(1),)))
    assert pool.bucket("a") == 2  # whatever its rate
    pool.observe(RolloutGroup("b", 4, (success(1), success(2))))
    assert pool.retired == ["b"]
    pool.observe(RolloutGroup("a", 4, (success(1, 2),)))
    pool.observe(RolloutGroup("a", 4, (success(1, 2, 3),)))
    assert [len(each) for each in pool.candidates("a")] == [2, 3]  # the shortest one left
    assert (
        TrajectorySelector(config.exp_metric, "argmin").metric(
            np.zeros(3), np.zeros(3), success(1, 2, 3)
        )
        == -3
    )
    assert bucket_weights(config.exp_bucket_manager, [1, 2], 4).tolist() == pytest.approx(
        [0.7310586, 0.2689414]
    )


@pytest.mark.parametrize(
    ("rewards", "bucket"),
    [
        ((0.9, 0.2, 0.2, 0.2), 2),
        ((0.9, 0, 0, 0), 1),
        ((1, 1, 1, 0.9), 3),
        ((5, -1, -1, -1), 2),
        ((), 1),
    ],
)
def test_a_question_can_be_filed_under_its_mean_reward(rewards, bucket):
    """Of four rollouts one is a success in each case; without rewards that is all that is known. A
    mean of 4 of 4 is not collected, and the question stays where it was."""
    pool = ExperiencePool(ExperienceConfig(rollout_n=4, exp_difficulty="mean_reward"))
    other = ExperiencePool(ExperienceConfig(rollout_n=4))
    for each in (pool, other):
        each.file("a", 3, success(1))
        each.observe(RolloutGroup("a", 4, (success(2),), rewards=rewards))
    assert pool.bucket("a") == bucket and other.bucket("a") == 1


def test_a_module_that_can_be_imported_serves_as_well():
    reference = "pkg://exgrpo.experience.rules:oldest"
    assert ExperienceConfig(rollout_n=4, exp_eviction=reference).exp_eviction == reference
    assert rules.EVICTIONS.load("k", reference) is rules.oldest


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "exp_metric",
            "entropy",
            "must be one of ent, ppl, random, or pkg://module:name or path/file.py:name",
        ),
        (
            "exp_bucket_manager",
            "gauss",
            "must be one of normal, linear, sqrt, linear_clip, False, or pkg://",
        ),
        ("exp_difficulty", "pkg://no_such_module:rule", "no_such_module cannot be imported"),
        ("exp_retirement", "pkg://exgrpo.experience.rules:nothing", "has no function 'nothing'"),
        ("exp_eviction", "/no/such/file.py:rule", "cannot be imported (no such file)"),
        ("exp_eviction", "{number}", "has no function 'number'"),
        ("exp_eviction", "{takes_nothing}", "must take the arguments (trajectory)"),
        ("exp_difficulty", "{shortest_first}", "must take the arguments (groups, rollout_n)"),
    ],
)
def test_a_wrong_rule_is_one_line_with_key_and_value(mine, key, value, message):
    value = mine(value.strip("{}")) if value.startswith("{") else value
    with pytest.raises(ValueError) as error:
        ExperienceConfig(rollout_n=4, **{key: value})
    said = str(error.value)
    assert said.startswith(f"trainer.{key}={value}: ") and message in said and "\n" not in said


def test_a_file_that_raises_is_named_with_its_reason(tmp_path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('two\\nlines')")
    with pytest.raises(ValueError, match=r"broken\.py cannot be imported \(two lines\)"):
        ExperienceConfig(rollout_n=4, exp_metric=f"{tmp_path}/broken.py:rule")


@pytest.mark.parametrize(
    ("rule", "value"),
    [("off_the_scale", r"\[99\]"), ("between", r"\[1\.5\]"), ("too_few", r"\[\]"), ("of_one", "1")],
)
def test_a_difficulty_that_is_no_bucket_is_named_and_nothing_has_changed(mine, rule, value):
    pool = ExperiencePool(ExperienceConfig(rollout_n=4, exp_difficulty=mine(rule)))
    with pytest.raises(
        ValueError,
        match=rf"exp_difficulty=.*:{rule}: returned {value} for 1 groups: must be an int",
    ):
        pool.observe(RolloutGroup("q", 4, (success(1),)))
    assert pool.trajectories == 0 and "q" not in pool


def test_a_file_may_define_dataclasses_and_one_that_failed_may_be_mended(tmp_path):
    path = tmp_path / "rules.py"
    lines = [
        "from __future__ import annotations",
        "from dataclasses import dataclass",
        "@dataclass",
        "class Kept:",
    ]
    path.write_text(
        "\n".join(
            [
                *lines,
                "    length: int",
                "def rank(trajectory):",
                "    return Kept(len(trajectory)).length",
            ]
        )
    )
    assert ExperienceConfig(rollout_n=4, exp_eviction=f"{path}:rank").exp_eviction == f"{path}:rank"
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    for text, message in (("1 / 0", "division"), ("def rank(trajectory):\n    return 0\n", None)):
        broken.write_text(text)
        if message is None:
            ExperienceConfig(rollout_n=4, exp_eviction=f"{broken}:rank")
        else:
            with pytest.raises(ValueError, match=message):
                ExperienceConfig(rollout_n=4, exp_eviction=f"{broken}:rank")


def test_references_are_told_from_names():
    assert is_reference("pkg://a.b:c") and is_reference("rules/mine.py:c")
    assert not any(
        map(is_reference, ("normal", "p_div_p_0.1", "pkg://a.b", "mine.py", "c:d", False, None))
    )
    assert (
        file_of("rules/mine.py:c") == "rules/mine.py"
        and file_of("pkg://a:b") is None
        and file_of("normal") is None
    )


def test_weights_that_are_no_logarithms_are_named():
    with pytest.raises(ValueError, match="must be a log-weight for each"):
        bucket_weights("pkg://builtins:print", [1, 2], 4)


def test_named_rules_by_hand():
    group = RolloutGroup("q", 7, (success(1),) * 7, replayed=1)
    assert (
        rules.all_solved(group, 8)
        and not rules.never(group, 8)
        and rules.released([group], 8) == [8]
    )
    assert rules.highest_entropy(success(1, entropy=math.nan)) == math.inf
    assert rules.lowest_entropy(success(1, entropy=math.nan)) == math.inf
    assert rules.lowest_entropy(success(1, entropy=0.2)) > rules.lowest_entropy(
        success(1, entropy=0.3)
    )
    assert rules.oldest(success(1, step=3)) > rules.oldest(success(1, step=4))
    assert rules.ppl(np.zeros(2), np.log([0.5, 0.5]), success(1)) == pytest.approx(2)


def test_what_is_never_retired_waits_until_a_rollout_fails():
    pool = ExperiencePool(ExperienceConfig(rollout_n=2, exp_retirement="never"))
    pool.observe(RolloutGroup("q", 2, (success(1),)))
    pool.observe(RolloutGroup("q", 2, (success(2), success(3))))
    assert pool.bucket("q") == 1 and not pool.retired and pool.eligible == 1  # stays drawable


def test_a_reshape_of_another_file_shapes_replayed_tokens_and_no_others(mine):
    settings = LossSettings(off_policy_reshape=mine("truncated"))
    log_prob = torch.log(torch.tensor([[0.8, 0.2], [0.8, 0.2]])).requires_grad_()
    past, ones = torch.log(torch.tensor([[0.4, 0.4], [0.4, 0.4]])), torch.ones(2, 2)
    losses, _ = mixed_token_losses(
        log_prob, past, ones, torch.tensor([True, False]), ones, settings
    )
    torch.testing.assert_close(losses.detach(), -torch.tensor([[1.0, 0.5], [2.0, 0.5]]))
    losses.sum().backward()
    torch.testing.assert_close(log_prob.grad, -torch.tensor([[0.0, 0.5], [2.0, 0.5]]))


def test_a_wrong_reshape_is_named(mine):
    with pytest.raises(
        ValueError, match=r"policy_loss.off_policy_reshape=foo: must be no_reshape, .* or pkg://"
    ):
        LossSettings(off_policy_reshape="foo")
    with pytest.raises(
        ValueError, match="must take the arguments \\(log_ratio, log_prob, weight, pow_exp\\)"
    ):
        LossSettings(on_policy_reshape=mine("shortest_first"))


def test_named_reshapes_are_those_of_the_tables():
    from exgrpo.loss_settings import NAMED_RESHAPES

    assert set(OFF_POLICY_RESHAPES.names) == set(ON_POLICY_RESHAPES.names) == set(NAMED_RESHAPES)
