"""lab/studies/: rewards that cannot be had otherwise, questions held back, a sampler that is the model's."""

import random

import numpy as np
import pytest
import skills
import torch
from minimal_loop import Policy, Rows, Task, groups_of, settings
from once_tasks import EVERY_TASK as TASKS
from rare_tasks import load
from run_measures import area
from study_loop import StudyLoop, parts, train
from variants import objective_of

from exgrpo import Trajectory


@pytest.fixture(scope="module")
def loaded():
    return {name: load(TASKS[name]) for name in ("rare-sum", "caesar", "backward")}


@pytest.mark.parametrize("name", TASKS)
def test_what_is_taught_as_careful_is_right(name):
    task = TASKS[name]
    for question in [question for part in task.split() for question in part]:
        assert task.reward(question, task.careful(question)) == 1


@pytest.mark.parametrize("name", TASKS)
def test_questions_are_distinct_and_held_back_from_the_base(name):
    task = TASKS[name]
    every = [question for part in task.split() for question in part]
    assert len(every) == len(set(every)) >= 160 and set(every) <= set(task.kept_back())
    assert task.split() == task.split()
    taught = {task.question(random.Random(seed)) for seed in range(500)}
    if name == "backward":  # the others' lessons leave barred questions out as they are drawn
        assert not set(task.kept_back()) & taught and len(taught) > 400


@pytest.mark.parametrize("name", ["rare-sum", "caesar", "backward"])
def test_the_sampler_and_the_pass_are_the_models_own(loaded, name):
    policy, task = loaded[name]
    slow = Policy(policy.model, policy.tokenizer, policy.max_tokens)
    questions = [question for question in task.test[:6] for _ in range(3)]
    torch.manual_seed(3)
    rows = list(zip(questions, policy.sample(questions, 1), strict=True))
    fast, now = policy.look(rows), slow.look(rows)
    for number, (_, row) in enumerate(rows):
        kept = now.mask[number].bool()
        torch.testing.assert_close(fast.log_prob[number, : len(row)], now.log_prob[number][kept], atol=2e-4, rtol=0)
        torch.testing.assert_close(fast.entropy[number, : len(row)], now.entropy[number][kept], atol=2e-4, rtol=0)
        np.testing.assert_allclose(row.log_probs, now.log_prob[number][kept].detach(), atol=2e-4)
        assert row.entropy == pytest.approx(float(now.entropy[number][kept].mean()), abs=2e-4)
        assert policy.tokenizer.eos_token_id not in row.tokens[:-1]


def test_the_sampler_draws_the_models_distribution(loaded):
    policy, task = loaded["backward"]
    torch.manual_seed(0)
    first = [row.tokens[0] for row in policy.sample([task.test[0]] * 4000, 0)]
    tokens = torch.tensor([policy.encode(task.test[0])])
    wanted = policy.model(tokens).logits[0, -1].softmax(-1).detach().numpy()
    found = np.bincount(first, minlength=len(wanted)) / len(first)
    assert np.abs(found - wanted).max() < 0.03


def test_gradients_are_the_models(loaded):
    policy, task = loaded["rare-sum"]
    torch.manual_seed(0)
    rows = list(zip(task.test[:8], policy.sample(task.test[:8], 1), strict=True))
    found = []
    for each in (policy, Policy(policy.model, policy.tokenizer, policy.max_tokens)):
        now = each.look(rows)
        policy.model.zero_grad()
        (now.log_prob * now.mask).sum().backward()
        found.append([weight.grad.clone() for weight in policy.model.parameters()])
    policy.model.zero_grad()
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)


def small_run(overrides, tokens=1500, name="rare-sum"):
    policy, task = load(TASKS[name])
    experience, loss, loop = settings(
        ["trainer.experience_start_sratio=0", f"loop.tokens={tokens}", "loop.tests=2", "loop.lr=1e-3", *overrides],
        StudyLoop,
    )
    asked = []
    recorded = Task(task.train, task.test[:4], lambda q, r: asked.append(q) or task.reward(q, r))
    return list(train(policy, recorded, experience, loss, loop, objective_of({}))), asked


GROUPS = ("trainer.exp_unit=group", "policy_loss.off_policy_loss=topr", "loop.questions=4")


def test_a_run_ends_with_its_tokens_and_one_seed_decides_it():
    curve, asked = small_run(GROUPS)
    assert curve[-2]["generated"] < 1500 <= curve[-1]["generated"] and "test" in curve[-1]
    assert sum("test" in row for row in curve) in (3, 4)
    assert (curve, asked) == small_run(GROUPS)


def test_stored_groups_take_half_of_a_step_and_generate_nothing():
    curve, _ = small_run(GROUPS)
    replaying = [row for row in curve if row.get("replayed")]
    assert replaying and all(row["asked"] + row["replayed"] == 4 for row in curve[1:])
    assert max(row["replayed"] for row in replaying) == 2 and all(row["replay_age"] >= 1 for row in replaying)


def test_rescue_adds_one_row_to_a_group_that_failed():
    rescued = [row["replayed"] for row in small_run((*GROUPS, "trainer.exp_rescue=True"), tokens=6000)[0][1:]]
    assert max(rescued) > 2


def rows_of(count):
    fresh = [(q, Trajectory([1], [-1.0], 1, reward=float(row % 2 == 0))) for q in "abcd" for row in range(count)]
    return Rows(fresh, [("a", fresh[0][1])])


def test_updates_and_reuse_deal_whole_groups():
    dealt = list(parts(rows_of(2), StudyLoop(updates=2, reuse=2)))
    assert ["".join(question for question, _ in part.fresh) for part in dealt] == ["aacc", "bbdd", "aacc", "bbdd"]
    assert [[question for question, _ in part.past] for part in dealt] == [["a"], [], ["a"], []]
    rows = rows_of(2)
    (whole,) = parts(rows, StudyLoop())
    assert whole is rows


def test_a_rescued_group_is_filed_by_its_fresh_rows():
    groups = groups_of(rows_of(2), 0.5, replayed=[])
    assert [group.replayed for group in groups] == [0] * 4
    assert [(len(group.successes), len(group.failures)) for group in groups] == [(1, 1)] * 4
    assert [one.reward for one in groups[0].failures] == [0.0]


def test_a_base_that_is_not_there_is_one_line_with_the_command_that_makes_it(monkeypatch, tmp_path):
    monkeypatch.setattr(skills, "BASES", tmp_path)
    with pytest.raises(
        SystemExit, match=r"caesar-1: no base model; first run python lab/studies/bases\.py caesar --base 1"
    ):
        load(TASKS["caesar"], base=1)


def test_area_is_up_to_the_budget():
    curve = [{"generated": 0, "test": 0.0}, {"generated": 100, "test": 1.0}, {"generated": 300, "test": 1.0}]
    assert area(curve, 200, "test") == pytest.approx(0.75, abs=0.01)
