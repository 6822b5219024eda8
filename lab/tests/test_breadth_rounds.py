"""What the arms of breadth_rounds.py change: which stored groups a step has, and what a stored success weighs."""

from itertools import product

import breadth_rounds
import numpy as np
import pytest
import torch
import variants
from ablate import parse
from equal_grids import overrides
from minimal_loop import Look, Rows
from rules import fading
from study_runs import Results, Run

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory
from exgrpo.loss_settings import LossSettings
from exgrpo.replay_losses import topr


@pytest.fixture(autouse=True)
def rows_in_place_of_a_loss(monkeypatch):
    monkeypatch.setattr(variants, "objective", lambda policy, rows, replay, loss: rows)


def rollouts(step, rewards):
    return [Trajectory([1], [-1.0], step, reward=reward) for reward in rewards]


def fresh(step, **rewards):
    """The fresh rows of a step: question -> the rewards of its group."""
    return [(question, one) for question, each in rewards.items() for one in rollouts(step, each)]


def replay_with(**rewards):
    """A replay that holds a past group of each of these questions."""
    keys = {"exp_unit": "group", "experience_ratio": "0", "experience_start_sratio": "0"}
    replay = ExperienceReplay(ExperienceConfig.from_mapping(keys, 2), list(rewards))
    for question, each in rewards.items():
        solved, failed = (tuple(one for one in rollouts(1, each) if bool(one.reward) == right) for right in (1, 0))
        replay.groups.add(RolloutGroup(question, 2, solved, failures=failed, rewards=each), 1)
    return replay


def stored(rows):
    return sorted(group.question for group in rows.stored)


def test_each_arm_is_set_beside_never_retiring(tmp_path):
    results = Results(tmp_path / "runs.parquet")
    for (name, (point, _)), task, seed in product(breadth_rounds.ARMS.items(), breadth_rounds.TASKS, (500, 501)):
        right = 0.25 if name == "UCB" else 0.125
        last = {"held_out_pass_1": right, "held_out_pass_32": 1.0, "trained_pass_1": right, "entropy": 0.1}
        run = Run(task, name, point, seed)
        results.add(run, {"area": right, "seconds": 10.0, "curve": [{"generated": 0, "test": right}], "last": last})
    lines = breadth_rounds.summary(results).splitlines()
    (ucb,) = (line for line in lines if line.startswith("| UCB |"))
    assert ucb == "| UCB | .250 | .250 | .250 | 1.000 | .000 | **.125 (.125 to .125)** | 1.0 |"
    assert "| never retiring | .125 | .125 | .125 | 1.000 | .000 |  | 1.0 |" in lines


def test_every_arm_is_settings_of_the_study():
    for name, (point, own) in breadth_rounds.ARMS.items():
        experience, *_ = parse(overrides(Run("caesar", name, point, 500), own))
        assert experience.experience == (name != "on-policy")


def test_a_question_that_is_solved_today_needs_no_replay():
    arm, replay = variants.StoredBy("need"), replay_with(a=(1, 0), b=(1, 0))
    solved, failing = Rows(fresh(2, a=(1, 1), b=(0, 0)), []), Rows(fresh(3, c=(1, 0), d=(0, 1)), [])
    assert stored(arm(None, solved, replay, None)) == []
    assert stored(arm(None, failing, replay, None)) == ["b"]


def test_what_was_just_drawn_rests_and_what_was_used_four_times_is_done():
    steps = [Rows(fresh(1, a=(1, 0)), []), *(Rows(fresh(step, c=(1, 0)), []) for step in range(2, 9))]
    rested, used = (
        [stored(arm(None, rows, replay_with(a=(1, 0)), None)) for rows in steps]
        for arm in (variants.StoredBy("cooldown"), variants.StoredBy("four_uses"))
    )
    assert rested == [[], ["a"], [], [], [], [], [], ["a"]]  # asked in step 1, drawn in 2 and 8
    assert used == [[]] + [["a"]] * 4 + [[]] * 3


def test_rules_of_questions_and_groups_by_hand():
    one, rng = np.ones(3), np.random.default_rng(0)
    past = variants.Past(
        failed=np.array([0.5, 0.5, 1.0]),
        right=np.array([4.0, 400.0, 0.0]),
        wrong=np.array([4.0, 400.0, 900.0]),
        draws=np.array([0.0, 9.0, 1.0]),
        since=9 * one,
        uses=one,
        age=np.array([0.0, 5.0, 10.0]),
    )
    assert variants.DRAWN_BY["youth"](past, rng).tolist() == [1.0, 0.5, 0.25]
    # worth 1, 1 and 0 beside bonuses of 2.19, .69 and 1.55
    assert variants.DRAWN_BY["ucb"](past, rng).tolist() == [1.0, 0.0, 0.0]
    drawn = sum(variants.DRAWN_BY["beta"](past, rng) for _ in range(200))
    assert drawn[1] > 150 and drawn[2] == 0  # the surest half has the likeliest rate of a half


def test_stored_groups_train_in_the_first_epoch_alone():
    arm = variants.StoredOnce()
    steps = [Rows(fresh(step, a=(1, 0)), [], ["a group"]) for step in (1, 2)]
    assert [len(arm(None, rows, None, None).stored) for rows, _ in product(steps, range(3))] == [1, 0, 0, 1, 0, 0]


class Recorded:
    """A policy that has not changed, whose second response has one token and the others two."""

    def look(self, rows):
        log_prob, mask = torch.full((len(rows), 2), -1.0), torch.ones(len(rows), 2)
        mask[1, 1] = 0
        return Look(log_prob, log_prob, log_prob, mask)


def test_as_verls_users_by_hand():
    """Two lively rows of three tokens, advantages of .707 and -.707; the dead group counts nowhere."""
    rows = Rows(fresh(2, lively=(1, 0), dead=(0, 0)), [])
    value, _ = variants.objective_of({"objective": "as_verls_users"})(Recorded(), rows, None, LossSettings())
    assert value.item() == pytest.approx(-(2 - 1) * 0.5**0.5 / 3, rel=1e-5)


def test_a_likely_success_teaches_less_and_a_failure_as_by_topr():
    log_prob = torch.tensor([[-0.1, -0.2], [-2.0, -3.0], [-2.0, -3.0]], requires_grad=True)
    advantages, replayed = torch.tensor([[1.0], [1.0], [-1.0]]).expand(3, 2), torch.ones(3, 2, dtype=torch.bool)
    settings = LossSettings.from_mapping({})
    ours, theirs = (
        torch.autograd.grad(loss(log_prob - 0.5, log_prob, advantages, replayed, settings).sum(), log_prob)[0]
        for loss in (fading, topr)
    )
    weights = 1 - torch.tensor([-0.3, -5.0, -torch.inf]).exp()
    torch.testing.assert_close(ours, theirs * weights[:, None])
