"""exp_scripts/minimal_loop.py: what it samples is what it trains on, and its settings are the trainer's."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "exp_scripts"))

import minimal_loop
from minimal_loop import train
from minimal_policy import Task, five_numbers
from minimal_settings import Loop, settings

from exgrpo import ExperienceConfig, ExperiencePool, RolloutGroup, Trajectory


@pytest.fixture(scope="module")
def policy():
    return five_numbers()[0]


def small(policy, overrides=()):
    policy_now, task = five_numbers()
    experience, loss, _ = settings(["trainer.experience_start_sratio=0", *overrides])
    loop = Loop(steps=3, questions=4, test_every=5)
    return list(train(policy_now, Task(task.train[:6], task.test[:8], task.reward), experience, loss, loop))


def test_log_probs_as_sampled_are_those_the_update_sees(policy):
    questions = ["1+2", "3+4+5+0+1", "2+2+2+2+2+2+2"]
    torch.manual_seed(1)
    rows = list(zip(questions, policy.sample(questions, 1), strict=True))
    now = policy.look(rows)
    assert now.mask.sum(1).tolist() == [len(one) for _, one in rows]
    torch.testing.assert_close(now.log_prob.detach() * now.mask, now.past, atol=1e-4, rtol=0)
    torch.testing.assert_close(now.entropy, torch.tensor([one.entropy for _, one in rows]), atol=1e-4, rtol=0)


def test_a_response_ends_with_its_end_token_or_at_the_limit(policy):
    torch.manual_seed(0)
    for one in policy.sample(["1+2+3+4+5"] * 32, 0):
        ended = (one.tokens == policy.tokenizer.eos_token_id).tolist()
        assert not any(ended[:-1]) and (ended[-1] or len(one) == policy.max_tokens)


def test_replay_begins_and_generates_one_rollout_less_a_group(policy):
    curve = small(policy)
    assert [row.get("replayed") for row in curve] == [None, 0, 2, 2]
    assert curve[0]["test"] > 0 and "test" in curve[-1] and "test" not in curve[1]


def test_one_seed_decides_a_run(policy):
    assert small(policy) == small(policy)


def test_on_policy_replays_nothing(policy):
    curve = small(policy, ["trainer.experience=False"])
    assert {row.get("replayed", 0) for row in curve} == {0} and curve[-1]["pool_trajectories"] == 0


def test_a_fresh_question_that_is_replayed_already_waits():
    assert minimal_loop.take(iter("abcad"), 3, ["a"]) == ["b", "c", "d"]


@pytest.mark.parametrize(("batch", "second"), [(1, "bc"), (3, "abc"), (None, "abc")])
def test_an_epoch_asks_no_question_retired_before_it_while_a_batch_remains(batch, second):
    pool = ExperiencePool(ExperienceConfig(rollout_n=2))
    order = minimal_loop.epochs(["a", "b", "c"], pool, batch, np.random.default_rng(0))
    first = [next(order)]
    pool.observe(RolloutGroup("a", 2, (Trajectory([1], [-1.0], 1), Trajectory([2], [-1.0], 1))))
    assert sorted(first + [next(order), next(order)]) == ["a", "b", "c"]  # the epoch that has begun asks them all
    assert sorted(next(order) for _ in second) == list(second)


def test_settings_are_the_trainers():
    experience, loss, loop = settings(
        ["trainer.experience_ratio=0.25", "policy_loss.loss_remove_clip=false", "loop.lr=1e-3"]
    )
    assert (experience.experience_ratio, loss.loss_remove_clip, loop.lr) == (0.25, False, 1e-3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("experience_ratio=1", "must be trainer.<key>=<value>"),
        ("trainer.experience_ratio", "must be trainer.<key>=<value>"),
        ("trainer.experience_rati=1", "no such key"),
        ("trainer.experience_ratio=2", "between 0 and 1"),
        ("policy_loss.beta=1", "no such key"),
        ("policy_loss.off_policy_reshape=p_div_p_0", "beta above 0"),
        ("policy_loss.loss_remove_clip=maybe", "true or false"),
        ("policy_loss.cliprange_low=x", "a number"),
        ("loop.steps=many", "loop.steps=many: must be an int"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(override, message):
    with pytest.raises(ValueError, match=message):
        settings([override])
