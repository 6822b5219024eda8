"""exp_scripts/regime/: rewards that cannot be had otherwise, questions held back, a sampler that is the model's."""

import json
import random
import sys

import numpy as np
import pytest
import rare_runs
import report
import study
import torch
from ablate import Run, parse
from methods import METHODS, overrides
from minimal_loop import Policy, Rows, groups_of, settings
from rare_tasks import RARE_TASKS, is_short, load
from study_loop import StudyLoop, StudyTask, parts, train
from variants import objective_of

from exgrpo import Trajectory


@pytest.fixture(scope="module")
def loaded():
    return {name: load(name) for name in RARE_TASKS}


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("3*12=36;36-7=29", 1),
        ("3+7=10;10+12=22|3*12=36;36-7=29", 1),
        ("3*12=36;36-7=29|3+7=10;10+12=22", 0),  # the last attempt counts
        ("3*12=36;36-7=28", 0),  # calculates wrongly
        ("3*12=36", 0),  # leaves a number out
        ("3*12=36;36-7=29;29*1=29", 0),  # uses another
        ("12*3=36;35-7=29", 0),  # goes on with another result
        ("7-3=4;4*12=48", 0),
        ("29", 0),
        ("", 0),
    ],
)
def test_a_countdown_is_solved_by_a_right_calculation_with_each_number_once(reply, reward):
    assert RARE_TASKS["countdown"].reward("3,7,12=29", reply) == reward


@pytest.mark.parametrize("name", RARE_TASKS)
def test_what_is_taught_as_careful_is_right(name):
    task = RARE_TASKS[name]
    train_questions, later, test_questions = task.split()
    for question in [*train_questions, *later, *test_questions]:
        assert task.reward(question, task.careful(question)) == 1


@pytest.mark.parametrize("name", RARE_TASKS)
def test_questions_are_distinct_and_held_back_from_the_base(name):
    task = RARE_TASKS[name]
    every = [question for part in task.split() for question in part]
    assert len(every) == len(set(every)) >= 160 and set(every) <= set(task.kept_back())
    assert task.split() == task.split()
    taught = {task.question(random.Random(seed)) for seed in range(500)}
    if name == "backward":  # the others' lessons leave barred questions out as they are drawn
        assert not set(task.kept_back()) & taught and len(taught) > 400


def test_a_shift_is_from_short_to_long():
    short, long, tested = RARE_TASKS["shift"].split()
    assert all(map(is_short, short)) and not any(map(is_short, long))
    assert sum(map(is_short, tested)) == len(tested) / 2
    other_train, _, other_tested = RARE_TASKS["rare-sum"].split()
    assert not {*short, *long, *tested} & {*other_train, *other_tested}


@pytest.mark.parametrize("name", ["rare-sum", "countdown", "backward"])
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


def small_run(overrides, tokens=1500, name="shift"):
    policy, task = load(name)
    experience, loss, loop = settings(
        ["trainer.experience_start_sratio=0", f"loop.tokens={tokens}", "loop.tests=2", "loop.lr=1e-3", *overrides],
        StudyLoop,
    )
    asked = []
    recorded = StudyTask(task.train, task.test[:4], lambda q, r: asked.append(q) or task.reward(q, r), task.later)
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


def test_long_questions_follow_after_a_third_of_the_tokens():
    _, asked = small_run(("trainer.experience=False", "loop.questions=2"), tokens=3000)
    short, long, _ = RARE_TASKS["shift"].split()
    kinds = [is_short(question) for question in asked if question in {*short, *long}]
    turn = kinds.index(False)
    assert all(kinds[:turn]) and not any(kinds[turn:]) and 0.2 < turn / len(kinds) < 0.8


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


def test_every_method_is_settings_of_the_trainer():
    for method in METHODS.values():
        for alternative in ({}, *method.alternatives):
            parse(overrides({**method.first, **alternative}, "1e-4", 100))


def test_the_search_takes_the_best_of_two_seeds(tmp_path):
    """Accuracy by made-up rule: 2e-4 is best, reuse better still with one seed, and worst with the other."""
    done = []

    def score(run):
        chosen = dict(one.split("=") for one in run.overrides)
        value = 0.5 - abs(float(chosen["loop.lr"]) - 2e-4) * 100
        return value + (0.1 if "loop.reuse" in chosen else 0) * (1 if run.seed == 1000 else -3)

    def do(wanted):
        for run in wanted:
            done.append(run)
            path = run.file(tmp_path)
            path.parent.mkdir(parents=True, exist_ok=True)
            curve = [{"generated": tokens, "test": score(run), "trained": 0} for tokens in (0, 10**6)]
            path.write_text(json.dumps({"curve": curve}))

    chosen = study.search(RARE_TASKS["rare-sum"], tmp_path, do)
    assert list(chosen) == list(METHODS) and all("loop.lr=2e-4" in each for each in chosen.values())
    assert not any("loop.reuse=2" in each for each in chosen["on-policy"])
    reused = [run for run in done if "loop.reuse=2" in run.overrides and "loop.lr=2e-4" in run.overrides]
    assert {run.seed for run in reused} == {1000, 1001}


def test_area_is_up_to_the_budget():
    curve = [{"generated": 0, "test": 0.0}, {"generated": 100, "test": 1.0}, {"generated": 300, "test": 1.0}]
    assert rare_runs.area(curve, 200, "test") == pytest.approx(0.75, abs=0.01)


def test_a_run_is_written_and_reported(tmp_path, capsys, monkeypatch):
    output = tmp_path / "out"
    chosen = {name: overrides(method.first, "5e-4", 600) for name, method in METHODS.items()}
    output.mkdir()
    (output / "chosen-backward.json").write_text(json.dumps(chosen))
    for seed in (0, 1):
        for each in chosen.values():
            rare_runs.perform(Run("backward", each, seed), output / "reported")
    monkeypatch.setattr(sys, "argv", ["report.py", "--collect", str(output), "--output", str(tmp_path)])
    report.main()
    printed = capsys.readouterr().out
    assert "| task | first eighth | first quarter |" in printed and "\n| backward | " in printed
    assert (tmp_path / "rare-success.png").stat().st_size > 5000
    data = json.loads((tmp_path / "rare-success.json").read_text())
    assert len(data["reported"]) == 6 and {run["method"] for run in data["reported"]} == set(METHODS)
    last = data["reported"][0]["last"]
    assert 0 <= last["held_out_pass_1"] <= last["held_out_pass_32"] <= 1


def test_a_confirmation_is_reported_when_all_of_its_runs_are_there():
    def made_up(method, seed):
        gain = (0.2 if seed < 10 else 0.1) * (method == "group replay")
        curve = {"generated": [0, 40_000], "test": [0.1, 0.3 + gain + seed / 100]}
        last = {"held_out_pass_32": 0.9}
        return {"task": "rare-sum", "seed": seed, "method": method, "last": last, "curve": curve}

    runs = [made_up(method, seed) for method in METHODS for seed in range(20)]
    shown = report.confirmation({"chosen": {"rare-sum": {}}, "reported": runs}).splitlines()
    cells = shown[2].strip("| ").split(" | ")
    assert len(shown) == 3 and cells[0] == "rare-sum" and cells[1].startswith(".247")
    assert cells[2].startswith("**.075 (.06") and cells[3] == "**.050 (.050 to .050)**" and cells[5] == cells[2]
    assert float(cells[4].split()[0]) == float(cells[6].split()[0]) == 0
    assert len(report.confirmation({"chosen": {"rare-sum": {}}, "reported": runs[:-1]}).splitlines()) == 2
