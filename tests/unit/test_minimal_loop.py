"""exp_scripts/minimal_loop.py: what it samples is what it trains on, and its settings are the
trainer's.
"""

import numpy as np
import pytest
import torch
from minimal_loop import REFUSED, Loop, Task, epochs, experience_of, five_numbers, settings, train

from exgrpo import ExperienceConfig, ExperienceReplay, Trajectory
from exgrpo.experience.experience_trainer_ops import Draw


@pytest.fixture(scope="module")
def policy():
    return five_numbers()[0]


def small(policy, overrides=()):
    policy_now, task = five_numbers()
    experience, loss, _ = settings(["trainer.experience_start_sratio=0", *overrides])
    loop = Loop(steps=3, questions=4, test_every=5)
    return list(
        train(policy_now, Task(task.train[:6], task.test[:8], task.reward), experience, loss, loop)
    )


def test_log_probs_as_sampled_are_those_the_update_sees(policy):
    questions = ["1+2", "3+4+5+0+1", "2+2+2+2+2+2+2"]
    torch.manual_seed(1)
    rows = list(zip(questions, policy.sample(questions, 1), strict=True))
    now = policy.look(rows)
    assert now.mask.sum(1).tolist() == [len(one) for _, one in rows]
    torch.testing.assert_close(now.log_prob.detach() * now.mask, now.past, atol=1e-4, rtol=0)
    views = policy.views(rows)
    assert (
        [len(view.entropies) for view in views]
        == [len(view.log_probs) for view in views]
        == [len(t) for _, t in rows]
    )
    for view, (_, rollout) in zip(views, rows, strict=True):
        assert view.entropies.mean() == pytest.approx(rollout.entropy, abs=1e-4)
        np.testing.assert_allclose(view.log_probs, rollout.log_probs, atol=1e-4)


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


def test_epochs_are_shuffled_and_say_where_they_begin():
    dealt = [
        next(stream)
        for stream in [epochs(["a", "b", "c"], np.random.default_rng(0))]
        for _ in range(9)
    ]
    assert [begins for _, begins in dealt] == [
        False,
        False,
        False,
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    names = ["".join(name for name, _ in dealt[start : start + 3]) for start in (0, 3, 6)]
    assert {"".join(sorted(name)) for name in names} == {"abc"} and len(set(names)) > 1


@pytest.mark.parametrize(
    "key", ["exp_seed=1", "experience_import=pool", "exp_missing_log_probs=one"]
)
def test_a_key_that_the_loop_cannot_honour_is_refused_by_name(key):
    with pytest.raises(ValueError, match=f"^trainer.{key}: [a-z]"):
        settings([f"trainer.{key}"])


def test_every_other_key_of_the_trainer_is_taken():
    taken = [name for name in ExperienceConfig.meanings() if name not in REFUSED]
    defaults = ExperienceConfig(8)
    overrides = [f"trainer.{name}={getattr(defaults, name)}" for name in taken]
    assert settings(overrides)[0] == defaults


def test_settings_are_the_trainers():
    experience, loss, loop = settings(
        ["trainer.experience_ratio=0.25", "policy_loss.loss_remove_clip=false", "loop.lr=1e-3"]
    )
    assert (experience.experience_ratio, loss.loss_remove_clip, loop.lr) == (0.25, False, 1e-3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("experience_ratio=1", "must be one of trainer.<key>=<value>"),
        ("trainer.experience_ratio", "must be one of trainer.<key>=<value>"),
        ("trainer.experience_rati=1", "no such key"),
        ("trainer.experience_ratio=2", "between 0 and 1"),
        ("policy_loss.beta=1", "no such key"),
        ("policy_loss.off_policy_reshape=p_div_p_0", "beta above 0"),
        ("policy_loss.loss_remove_clip=maybe", "true or false"),
        ("policy_loss.cliprange_low=x", "a number"),
        ("loop.steps=many", "loop.steps=many: must be an int"),
        ("loop.steps=0", "loop.steps=0: must be at least 1"),
        ("loop.seed=-1", "loop.seed=-1: must be at least 0"),
        ("loop.lr=-1", "loop.lr=-1.0: must be at least 0"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(override, message):
    with pytest.raises(ValueError, match=message):
        settings([override])


class Dice:
    """Samples one token a response: 1 and 0 in turn."""

    def sample(self, questions, step):
        return [Trajectory([turn % 2], [-1.0], step, 0.5) for turn in range(len(questions))]

    def decode(self, trajectory):
        return str(trajectory.tokens[0])

    def views(self, rows):
        raise AssertionError("nothing is scored")


def test_a_past_group_takes_the_place_of_a_dead_one_that_still_counts():
    """Step 1 asks a, step 2 asks b, of which no rollout is right: a's group of step 1 is trained on
    instead.
    """
    keys = {
        "exp_unit": "group",
        "exp_place": "dead",
        "experience_ratio": 0.9,
        "experience_start_sratio": 0,
    }
    replay = ExperienceReplay(ExperienceConfig(rollout_n=2, **keys), ["a", "b", "c"])
    task = Task(
        ["a", "b", "c"], [], lambda question, reply: float(question != "b" and reply == "1")
    )
    first, _ = experience_of(Dice(), task, replay, Draw([], ["a"], True), 1)
    second, report = experience_of(Dice(), task, replay, Draw([], ["b", "c"], True), 2)
    assert [question for question, _ in first.fresh] == ["a", "a"] and not first.stored
    assert [question for question, _ in second.fresh] == ["c", "c"]
    assert [group.question for group in second.stored] == ["a"]
    assert (report["tokens"], report["asked"], report["fresh_score"]) == (4, 2, 0.25)
