"""The runs of the study where success is rare, taken together in one file, and the first measure of each."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from methods import METHODS, ROUND_THREE, SHAPING
from rare_runs import area
from rare_tasks import RARE_TASKS

Rows = Sequence[Mapping[str, Any]]
REPORTED, CONFIRMED = range(10), range(10, 20)  # seeds: of the tables, of the confirmation
_CURVE = ("generated", "test", "trained", "test_short", "test_long")


def collect(folder: Path) -> dict[str, Any]:
    """The runs of a study: settings that won, the search, the reported runs."""
    chosen = {path.stem.removeprefix("chosen-"): json.loads(path.read_text()) for path in folder.glob("chosen-*.json")}
    reported, searched = [], []
    for path in sorted(folder.glob("reported/*/*.json")):
        run = json.loads(path.read_text())
        named = [name for name, settings in _named(chosen[run["task"]]).items() if settings == run["settings"]]
        reported += [_compact(run) | {"method": name} for name in named]
    for path in sorted(folder.glob("search/*/*.json")):
        run = json.loads(path.read_text())
        task = RARE_TASKS[run["task"]]
        tokens = next(
            int(setting.partition("=")[2]) for setting in run["settings"] if setting.startswith("loop.tokens=")
        )
        score = area(run["curve"], tokens, task.measure)
        searched.append({name: run[name] for name in ("task", "settings", "seed")} | {"area": round(score, 4)})
    return {"chosen": {name: chosen[name] for name in RARE_TASKS if name in chosen}} | {
        "reported": reported,
        "search": searched,
    }


def _named(chosen: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Method -> its settings in a run's order; those of the study of shaping and of round three too."""
    others: dict[str, list[str]] = {}
    for base, changes in (("ExGRPO", SHAPING), ("group replay", ROUND_THREE)):
        settings = dict(setting.split("=", 1) for setting in chosen[base])
        others |= {name: [f"{k}={v}" for k, v in {**settings, **own}.items()] for name, own in changes.items()}
    return {name: sorted(settings) for name, settings in {**chosen, **others}.items()}


def _compact(run: Mapping[str, Any]) -> dict[str, Any]:
    tests = [row for row in run["curve"] if "test" in row]
    curve = {name: [round(row[name], 4) for row in tests] for name in _CURVE if name in tests[0]}
    kept = {name: run[name] for name in ("task", "seed", "visits", "processor_seconds", "seconds")}
    last = {name: round(value, 4) for name, value in run["last"].items()}
    return kept | {"steps": run["curve"][-1]["step"], "last": last, "curve": curve}


def area_of(run: Mapping[str, Any], share: float = 1.0) -> float:
    """The first measure of a reported run; up to a share of its tokens."""
    task, curve = RARE_TASKS[run["task"]], run["curve"]
    rows = [dict(zip(curve, values, strict=True)) for values in zip(*curve.values(), strict=True)]
    return area(rows, task.budget * share, task.measure)


def by_method(
    data: Mapping[str, Any], task: str, names: Sequence[str] = tuple(METHODS), seeds: Collection[int] = REPORTED
) -> dict[str, Rows]:
    """Method -> its runs with those of the seeds that all methods have, in the order of the seeds."""
    mine = [run for run in data["reported"] if run["task"] == task and run["seed"] in seeds]
    methods = {name: {run["seed"]: run for run in mine if run["method"] == name} for name in names}
    common = sorted(set.intersection(*(set(runs) for runs in methods.values())))
    return {name: [runs[seed] for seed in common] for name, runs in methods.items()}


def tasks(data: Mapping[str, Any], names: Sequence[str] = tuple(METHODS)) -> list[str]:
    """Those that all methods have run with two seeds or more."""
    return [task for task in data["chosen"] if len(by_method(data, task, names)[names[0]]) > 1]
