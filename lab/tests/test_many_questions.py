"""lab/studies/many_questions.py: the world, its methods, and the table of a report."""

from dataclasses import replace

import many_questions
import many_questions_report
import pytest
from many_questions import METHODS, TASK, at_rate
from study_runs import Results

AREAS = {"on-policy": 0.5, "ExGRPO": 0.6, "prompt": 0.55, "phantom": 0.5}


def test_training_and_test_questions_are_distinct_and_held_back_from_the_base():
    asked, held_out = TASK.split()
    assert len({*asked, *held_out}) == many_questions.TRAIN + many_questions.TEST
    assert {*asked, *held_out} <= set(TASK.kept_back())


def test_the_base_is_right_on_two_fifths_and_two_fifths_of_its_groups_have_no_advantage(monkeypatch):
    monkeypatch.setattr(many_questions, "TEST", 96)
    monkeypatch.setattr(many_questions, "TASK", replace(TASK, split=many_questions.split))
    measured = many_questions.facts()
    assert measured["accuracy"] == pytest.approx(0.43, abs=0.08)
    assert measured["without_advantage"] == pytest.approx(0.44, abs=0.12)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_has_a_curve_and_the_same_seed_the_same_one(method, monkeypatch):
    monkeypatch.setattr(many_questions, "TASK", replace(TASK, budget=9_000))
    monkeypatch.setattr(many_questions, "COMMON", many_questions.COMMON | {"loop.tests": "1"})
    first, second = (many_questions.perform(at_rate(method, "1e-4", 1000)) for _ in range(2))
    assert first["curve"] == second["curve"] and len(first["curve"]) == 2
    assert (first["curve"][-1]["pool_trajectories"] > 0) is (method != "on-policy")


def test_the_report_pairs_seeds_and_leaves_out_what_not_every_method_has(tmp_path, capsys):
    file = tmp_path / "runs.parquet"
    last = {"held_out_pass_1": 0.5, "trained_pass_1": 0.6, "held_out_pass_32": 0.9, "entropy": 0.1}
    results = Results(file)
    for seed in range(3):
        for name, area in AREAS.items():
            if (name, seed) != ("phantom", 2):
                curve = [{"generated": tokens, "test": area} for tokens in (0, 450_000)]
                row = {"seconds": 1, "area": area + seed / 100, "curve": curve, "last": last}
                results.add(at_rate(name, "1e-4", seed), row)
    many_questions_report.main(["--file", str(file)])
    printed = capsys.readouterr().out
    assert "11 runs, " in printed and "\n2 seeds\n" in printed and "\n3 seeds" not in printed
    assert "| ExGRPO, to on-policy | **.100 (.100 to .100)** |" in printed
    assert len(Results(file).found) == 11
