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
from equal_grids import BASE, CARRIED, CONTROLS, FILE, METHODS, TASKS
from equal_grids_pictures import draw
from run_measures import area
from seed_tables import Runs, differences, marked, measures, reported, table
from study_runs import Results

from exgrpo.console import in_one_line

FIRST, *REPLAY = METHODS


def base_row(results: Results, task: str) -> str:
    """Of the bases that the runs start from, one value a draw of questions and base."""
    each = [measures(run) for run in reported(results, task, [BASE]).get(BASE, ())]
    if not each:
        return f"| {BASE}, not measured yet |"
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


def own(results: Results, task: str) -> Runs:
    """The reported runs of a task's own search."""
    return reported(results, task, METHODS)


def carried(results: Results, task: str) -> Runs:
    """Those with what won on the first task."""
    runs = reported(results, task, [name + CARRIED for name in METHODS])
    return {name.removesuffix(CARRIED): each for name, each in runs.items()}


def of_task(results: Results, task: str, runs: Runs) -> str:
    """Markdown: the methods' table with the base's row, and by processor time."""
    parts = [f"{table(runs)}\n{base_row(results, task)}"]
    parts += [f"{name}, by processor time: {marked(by_processor_time(runs, name))}" for name in REPLAY]
    return "\n\n".join(parts)


def won_and_controls(results: Results, task: str) -> str:
    """Markdown: the point that won for each method, and each control beside its method."""
    points = {run.method: run.point for run in results.found if run.task == task and run.is_reported}
    parts = []
    for name in METHODS:
        rate, fresh, epochs, clip = points[name]
        parts.append(f"{name}: rate {rate}, {fresh} fresh groups, epochs {epochs}, clip {clip}")
    for control, (method, _) in CONTROLS.items():
        pair = reported(results, task, [method, control])
        parts.append(table(pair) if pair else f"{control}: not run yet")
    return "\n\n".join(parts)


def summary(every: Mapping[str, Runs]) -> str:
    """Markdown: a row a task, and one with tasks as units: what replay gains over the run and what it costs."""
    titles = [f"{name}: {what}" for what in ("over the run", "pass@32") for name in REPLAY]
    lines = [f"| task | {FIRST} | {' | '.join(titles)} |", "| --- |" + " --- |" * (1 + len(titles))]
    for task, runs in every.items():
        gaps = [differences(runs, name)[what] for what in ("over the run", "pass@32") for name in REPLAY]
        level = estimate([measures(run)["over the run"] for run in runs[FIRST]])
        lines.append(f"| {task} | {level} | {' | '.join(map(marked, gaps))} |")
    units = [over_tasks(every, name)[what] for what in ("over the run", "pass@32") for name in REPLAY]
    return "\n".join([*lines, f"| tasks as units | | {' | '.join(map(marked, units))} |"])


def as_units(every: Mapping[str, Runs]) -> str:
    """Differences to on-policy GRPO, a value a task."""
    lines = [f"{len(every)} tasks as units, to {FIRST}:\n"]
    for name in REPLAY if len(every) > 1 else ():
        lines += [f"- {name}, {key}: {marked(values)}" for key, values in over_tasks(every, name).items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what each task's own search brought, then what the first task's brought elsewhere; draw both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--picture", type=Path, default=FILE.with_suffix(".png"))
    options = parser.parse_args(arguments)
    results = Results(options.file)
    seconds = sum(row["seconds"] for row in results.found.values())
    print(f"{len(results.found)} runs, {seconds / 3600:.1f} processor hours")
    shown: dict[str, Runs] = {}
    for task in TASKS:
        if runs := own(results, task):
            shown[task] = runs
            print(f"\n## {task}, its own search: {len(runs[FIRST])} seeds\n\n{of_task(results, task, runs)}\n")
            print(won_and_controls(results, task))
        if runs := carried(results, task):
            if task not in shown:
                shown[f"{task}{CARRIED}"] = runs
            print(f"\n## {task}{CARRIED}: {len(runs[FIRST])} seeds\n\n{of_task(results, task, runs)}")
    if shown:
        print(f"\n## All tasks\n\n{summary(shown)}")
        print(f"\n## {as_units(shown)}")
        draw(shown, options.picture)


if __name__ == "__main__":
    with in_one_line("equal_grids_report.py"):
        main()
