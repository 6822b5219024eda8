"""The study with equal grids: as many runs for each method, a search that goes on, a grid that grows for all."""

import itertools
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import equal_grids
import equal_grids_report
import pytest
from equal_grids import GRID, KEYS, METHODS, neighbours, overrides, search, third
from once_tasks import EVERY_TASK
from rare_tasks import questions
from study_runs import Point, Results, Run


class AtOnce:
    """An executor whose runs score by their rate, and which counts them."""

    def __init__(self):
        self.runs = []

    def submit(self, perform, run):
        from concurrent.futures import Future

        self.runs.append(run)
        done = Future()
        done.set_result({"area": score(run.point), "seconds": 1.0})
        return done


def score(point):
    return float(point.rate) * int(point.epochs) + int(point.fresh) / 1e6


def test_each_method_has_as_many_runs_and_the_best_point_wins(tmp_path):
    executor, results = AtOnce(), Results(tmp_path / "runs.parquet")
    winners = search("caesar", results, executor)
    count = {name: sum(run.method == name for run in executor.runs) for name in METHODS}
    near = neighbours(sorted(third(), key=score)[-3:])
    assert set(count.values()) == {(40 + len(near)) * 2 + 8 * 2 + 3 * 4}
    assert {(point.rate, point.epochs) for point in winners.values()} == {("5e-4", "16")}


def test_another_task_searches_what_the_rounds_chose_and_reports_it_without_controls(tmp_path):
    executor = AtOnce()
    winners = search("backward", Results(tmp_path / "runs.parquet"), executor)
    assert set(winners) == {run.method for run in executor.runs} == set(equal_grids.OWN)
    runs = equal_grids.reported("backward", winners)
    assert {run.method for run in runs} == {*equal_grids.OWN, equal_grids.BASE} and len(runs) == 3 * 10 + 6


def test_past_groups_for_dead_ones_ask_fresh_groups_alone():
    point = Point("1e-4", "4", "8", "yes")
    asked = {name: overrides(Run("backward", name, point, 0), KEYS[name]) for name in equal_grids.OWN}
    groups = {name: int(dict(key.split("=") for key in found)["loop.questions"]) for name, found in asked.items()}
    assert groups == {"on-policy": 4, "past groups beside": 8, "past groups for dead": 4}


def test_a_stopped_search_goes_on_from_its_file(tmp_path):
    file = tmp_path / "runs.parquet"
    search("caesar", Results(file), AtOnce())
    again = AtOnce()
    search("caesar", Results(file), again)
    assert again.runs == [] and file.exists() and not file.with_suffix(".jsonl").exists()


def test_a_third_of_the_grid_has_each_rate_with_each_number_of_epochs():
    assert len(third()) == 40 and {(point.rate, point.epochs) for point in third()} == set(
        itertools.product(GRID["rate"], GRID["epochs"])
    )


def test_neighbours_are_a_step_on_one_axis_away_and_new():
    near = neighbours([Point("1e-4", "4", "4", "yes")])
    changed = {
        ("5e-5", "4", "4", "yes"),
        ("2e-4", "4", "4", "yes"),
        ("1e-4", "2", "4", "yes"),
        ("1e-4", "8", "4", "yes"),
        ("1e-4", "4", "2", "yes"),
        ("1e-4", "4", "8", "yes"),
    }
    assert set(near) == changed - set(third())
    assert Point("5e-4", "4", "16", "yes") in neighbours([Point("5e-4", "4", "8", "yes")])


def test_controls_run_at_the_point_that_won_for_their_method():
    winners = {name: Point(f"{number}e-4", "2", "4", "yes") for number, name in enumerate(METHODS, 1)}
    runs = equal_grids.reported("caesar", winners)
    assert len(runs) == len(set(runs)) == 3 * 20 + len(equal_grids.CONTROLS) * 10 + 6
    assert all(overrides(run, KEYS[run.method]) for run in runs if run.method != equal_grids.BASE)
    for name, (method, _) in equal_grids.CONTROLS.items():
        assert {run.point for run in runs if run.method == name} == {winners[method]}


def test_the_report_has_each_task_and_all_of_them_with_tasks_as_units(tmp_path, capsys):
    results = Results(tmp_path / "runs.parquet")
    winners = dict.fromkeys(METHODS, Point("1e-4", "2", "4", "yes"))
    runs = equal_grids.reported("caesar", winners) + equal_grids.carried(winners)
    for run in runs:
        if run.task in ("caesar", "backward"):
            lead = 0.1 if run.task == "caesar" else 0.3
            right = 0.5 + (lead if run.method.startswith(("group replay", "past groups")) else 0.0)
            last = {"held_out_pass_1": right, "held_out_pass_32": 1.0, "trained_pass_1": right, "entropy": 0.1}
            curve = [{"generated": 0, "test": 0.5}, {"generated": 20_000, "test": right}]
            results.add(run, {"area": right, "seconds": 10.0, "curve": curve, "last": last})
    equal_grids_report.main(["--file", str(tmp_path / "runs.parquet"), "--picture", str(tmp_path / "runs.png")])
    assert (tmp_path / "runs.png").exists()
    printed = capsys.readouterr().out
    assert "group replay: 20 seeds; by" in printed and "past groups beside, half rate: 10 seeds; by" in printed
    assert "| group replay, to on-policy | **.100" in printed
    (units,) = (table for table in printed.split("\n## ") if table.startswith("group replay\n"))
    # by time it is half of what the ends differ by
    assert "| 2 tasks as units | | | .200" in units and re.search(r"\.100 \(\S+ to \S+\) \| \|$", units.strip())


def test_what_a_search_of_its_own_found_takes_the_place_of_the_best_rate(tmp_path):
    def add(method, right):
        last = {"held_out_pass_1": right, "held_out_pass_32": 1.0, "trained_pass_1": right, "entropy": 0.1}
        curve = [{"generated": 0, "test": 0.5}, {"generated": 20_000, "test": right}]
        for seed in range(2):
            run = Run("backward", method, Point("1e-4", "2", "4", "yes"), seed)
            results.add(run, {"area": right, "seconds": 10.0, "curve": curve, "last": last})

    def found():
        runs = equal_grids_report.against(results, "backward")["past groups for dead, best rate"]
        return [rows[0]["area"] for rows in runs.values()]

    results = Results(tmp_path / "runs.parquet")
    for method, right in {"on-policy": 0.5, "on-policy, half rate": 0.6, "past groups for dead": 0.7}.items():
        add(method + equal_grids.CARRIED, right)
    assert found() == [0.6, 0.7]
    for method, right in {"on-policy": 0.4, "past groups for dead": 0.8}.items():
        add(method, right)
    assert found() == [0.4, 0.8]
    carried = equal_grids_report.against(results, "backward")["past groups for dead"]
    assert [rows[0]["area"] for rows in carried.values()] == [0.5, 0.7]  # with what won on caesar


def test_a_run_is_one_of_a_draw_and_a_base_and_the_same_each_time(monkeypatch):
    monkeypatch.setattr(equal_grids, "COMMON", equal_grids.COMMON | {"loop.tests": "1"})
    monkeypatch.setitem(EVERY_TASK, "caesar", replace(EVERY_TASK["caesar"], budget=500))
    run = Run("caesar", "group replay", Point("2e-4", "2", "2", "yes"), 1000)
    first, second = equal_grids.perform(run), equal_grids.perform(run)
    assert first["area"] == second["area"] and "loop.questions=4" in overrides(run, KEYS[run.method])


def test_draws_are_distinct_questions_that_no_base_saw():
    for name in equal_grids.TASKS:
        drawn = [questions(EVERY_TASK[name], draw) for draw in range(3)]
        kept_back = set(EVERY_TASK[name].kept_back())
        for train, test in drawn:
            every = [*train, *test]
            assert len(every) == len(set(every)) and set(every) <= kept_back
        assert len({tuple(train) for train, _ in drawn}) == 3


def test_an_error_of_a_run_ends_the_study_at_once(tmp_path):
    results, ran = Results(tmp_path / "runs.parquet"), []
    runs = [Run("caesar", "on-policy", Point("1e-4", "2", "4", "yes"), seed) for seed in range(100)]

    def fails_at_two(run):
        ran.append(run.seed)
        if run.seed == 2:
            raise ValueError("seed 2")
        time.sleep(0.02)
        return {"area": 0.0}

    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match="seed 2"):
        results.do(runs, executor, fails_at_two)
    assert len(ran) < 20
