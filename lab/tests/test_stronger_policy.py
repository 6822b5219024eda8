"""The study of a stronger policy: what it starts from, how each method finds its rate, its table."""

import stronger_policy
import torch
from rare_tasks import RARE_TASKS, load
from run_measures import test as accuracy_of
from stronger_policy import ENTRIES, RATES, reports, searched, taught
from study_runs import Results

LAST = {"held_out_pass_1": 0.5, "held_out_pass_32": 0.9, "trained_pass_1": 0.6, "entropy": 0.1}


def test_right_answers_to_other_questions_make_it_stronger_and_the_same_each_time():
    policy, task = load(RARE_TASKS["caesar"], 1, 0)
    stronger, asked = taught("caesar", 1, 0)
    again, _ = taught("caesar", 1, 0)
    assert (asked.train, asked.test) == (task.train, task.test)
    assert all(map(torch.equal, stronger.model.parameters(), again.model.parameters()))
    torch.manual_seed(0)
    assert accuracy_of(stronger, asked)["test"] > accuracy_of(policy, task)["test"] + 0.2


def test_each_method_reports_at_the_rate_its_search_likes_best(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stronger_policy, "REPORTED", 2)
    results = Results(tmp_path / "runs.parquet")
    lead = {name: place / 10 for place, name in enumerate(ENTRIES)}

    def made_up(right):
        curve = [{"generated": 0, "test": 0.5}, {"generated": 10_000, "test": right}]
        return {"area": right, "seconds": 10.0, "curve": curve, "last": LAST}

    for task in stronger_policy.TASKS:
        for seed in range(6):
            results.add(stronger_policy.START._replace(task=task, seed=seed), made_up(0.4))
        for name in ENTRIES:
            best = RATES[len(name) % len(RATES)]
            for rate in RATES:
                for run in searched(task, name, rate):
                    results.add(run, {"area": float(rate == best), "seconds": 1.0})
        for seed in range(2):
            for run in reports(results, task, seed):
                results.add(run, made_up(0.5 + lead.get(run.method, 0.05)))
    stronger_policy.main(["--file", str(tmp_path / "runs.parquet"), "--jobs", "1"])
    printed = capsys.readouterr().out
    assert "caesar: on-policy 5e-5, ExGRPO 1e-4, past groups beside 1e-4, past groups for dead 2.5e-5\n" in printed
    assert "| caesar | base | .400 (.400 to .400) |" in printed and "| caesar | on-policy | .550 (" in printed
    assert "| | on-policy, the other rate | **-.050 (-.050 to -.050)** |" in printed  # half is the better one here
    assert "| | ExGRPO | **.050 (.050 to .050)** |" in printed
    assert "| tasks as units | past groups for dead | **.250 (.250 to .250)** |" in printed
