"""lab/studies/trainer_study.py: the study's settings in verl's keys, its curve, table and reward."""

import sys

import pytest
import rare_reward
import trainer_study
from rare_tasks import RARE_TASKS

ACTOR = "actor_rollout_ref.actor"


def test_settings_of_the_study_are_verls_keys():
    study = ["loop.tests=8", "loop.tokens=20000", "trainer.exp_unit=group", "policy_loss.off_policy_loss=topr"]
    assert set(trainer_study.verl_keys([*study, "loop.questions=4", "loop.lr=2e-4", "loop.reuse=2"])) == {
        "data.train_batch_size=4",
        f"{ACTOR}.ppo_mini_batch_size=4",
        f"{ACTOR}.optim.lr=2e-4",
        f"{ACTOR}.ppo_epochs=2",
        f"{ACTOR}.policy_loss.off_policy_loss=topr",
        "trainer.exp_unit=group",
    }


def test_the_reward_is_the_tasks():
    assert rare_reward.compute_score("backward", "olleh", "hello") == {"score": 1.0, "acc": 1.0}
    assert rare_reward.compute_score("backward", "hello", "hello")["score"] == 0.0
    assert rare_reward.compute_score("rare-sum", "3+4=7;\\boxed{7}", "3+4")["acc"] == 1.0


def step(tokens=None, test=None):
    found = {} if tokens is None else {"timing_s/step": 2.0, "timing_s/gen": 1.0, "experience/generated_tokens": tokens}
    return found | ({} if test is None else {"val-core/backward/acc/mean@2": test})


STEPS = {0: step(test=0.1), 1: step(4000), 2: step(6000, 0.3), 3: step(10000), 4: step(5000, 0.7)}


def test_the_curve_is_by_generated_tokens():
    task = RARE_TASKS["backward"]
    curve = trainer_study.curve_of(task, STEPS)
    assert [(row["step"], row["generated"], row["test"]) for row in curve] == [
        (0, 0, 0.1),
        (2, 1e4, 0.3),
        (4, 25e3, 0.7),
    ]
    found = trainer_study.figures(task, STEPS)
    assert (found["steps"], found["tokens_a_step"]) == (4, 6250)
    assert found["trained_s"] == 8.0 * 20_000 / 25_000  # what the steps to the budget took
    ended = trainer_study.figures(task, {step: STEPS[step] for step in (0, 1, 2)})  # every question retired
    assert ended["trained_s"] == 4.0


def test_a_table_has_the_seeds_that_all_methods_have():
    found = trainer_study.figures(RARE_TASKS["backward"], STEPS)
    better = found | {"curve": [row | {"test": row["test"] + 0.1} for row in found["curve"]]}
    runs = {("backward", method, seed): found for method in trainer_study.METHODS for seed in (0, 1)}
    runs |= {("backward", "past groups for dead", seed): better for seed in (0, 1)} | {("backward", "ExGRPO", 2): found}
    lines = trainer_study.table(runs, range(5)).splitlines()
    assert len(lines) == 5 and lines[2].startswith("| backward | on-policy | 2 |")
    assert "**.100 (.100 to .100)**" in lines[4] and ".000" in lines[3]
    assert len(trainer_study.table({}, range(5)).splitlines()) == 2
    assert "nan" not in trainer_study.table(runs, [0])  # one seed has no interval


def test_an_unknown_task_ends_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trainer_study.py", "countdown"])
    with pytest.raises(SystemExit):
        trainer_study.main()
    assert "countdown: must be one of caesar, backward" in capsys.readouterr().err
