"""Tables of the study with equal grids (equal_grids.py): each task, then all tasks with tasks as units.

python exp_scripts/regime/equal_grids_report.py [--file FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import study_folders  # noqa: F401
from comparison import estimate
from equal_grids import BASE, CONTROLS, FILE, METHODS, TASKS
from equal_grids_pictures import draw
from rare_runs import area
from seed_tables import Runs, differences, marked, measures, reported, table
from study_runs import Results

from exgrpo.console import in_one_line

FIRST, *REPLAY = METHODS


def base_row(results: Results, task: str) -> str:
    """Of the bases that the runs start from, one value a draw of questions and base."""
    each = [measures(run) for run in reported(results, task, [BASE])[BASE]]
    return f"| {BASE} | " + " | ".join(str(estimate([one[key] for one in each])) for key in each[0]) + " |"


def by_processor_time(runs: Runs, name: str) -> list[float]:
    """Mean accuracy over the processor time of the faster of the two, to the first method, a value a seed."""
    pairs = zip(runs[name], runs[FIRST], strict=True)
    gaps = []
    for run, other in pairs:
        seconds = min(run["seconds"], other["seconds"])
        gaps.append(over_seconds(run, seconds) - over_seconds(other, seconds))
    return gaps


def over_seconds(run: Mapping[str, Any], seconds: float) -> float:
    """Mean accuracy over the first so many processor seconds of a run; its tokens came evenly."""
    pace = run["seconds"] / run["curve"][-1]["generated"]
    curve = [{"generated": row["generated"] * pace, "test": row["test"]} for row in run["curve"]]
    return area(curve, seconds, "test")


def over_tasks(every: Mapping[str, Runs], name: str) -> dict[str, list[float]]:
    """Of each measure, the mean difference to on-policy GRPO, a value a task."""
    of_tasks = [differences(runs, name) | {"by time": by_processor_time(runs, name)} for runs in every.values()]
    return {key: [float(np.mean(one[key])) for one in of_tasks] for key in of_tasks[0]}


def of_task(results: Results, task: str, runs: Runs) -> str:
    """Markdown: what won, the methods' table with the base's row, and each control beside its method."""
    points = {run.method: run.point for run in results.found if run.task == task and run.is_reported}
    parts = [f"## {task}: {len(runs[FIRST])} seeds"]
    for name in METHODS:
        rate, fresh, epochs, clip = points[name]
        parts.append(f"{name}: rate {rate}, {fresh} fresh groups, epochs {epochs}, clip {clip}")
    parts.append(f"{table(runs)}\n{base_row(results, task)}")
    parts += [f"{name}, by processor time: {marked(by_processor_time(runs, name))}" for name in REPLAY]
    for control, (method, _) in CONTROLS.items():
        pair = reported(results, task, [method, control])
        parts.append(table(pair) if pair else f"{control}: not run yet")
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--picture", type=Path, default=FILE.with_suffix(".png"))
    options = parser.parse_args(arguments)
    results = Results(options.file)
    seconds = sum(row["seconds"] for row in results.found.values())
    print(f"{len(results.found)} runs, {seconds / 3600:.1f} processor hours")
    found = {task: reported(results, task, METHODS) for task in TASKS}
    every = {task: runs for task, runs in found.items() if runs}
    for task, runs in every.items():
        print(f"\n{of_task(results, task, runs)}")
    if every:
        draw(every, options.picture)
    print(f"\n## {len(every)} tasks as units, to {FIRST}\n")
    for name in REPLAY if len(every) > 1 else ():
        for key, values in over_tasks(every, name).items():
            print(f"- {name}, {key}: {marked(values)}")


if __name__ == "__main__":
    with in_one_line("equal_grids_report.py"):
        main()
