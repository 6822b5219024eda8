"""Tables of the study with equal grids (equal_grids.py): each task, then each method with tasks as units.

python lab/studies/equal_grids_report.py [--file FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import study_folders
from comparison import estimate
from equal_grids import BASE, CARRIED, CHOSEN, CONTROLS, FILE, METHODS, TASKS
from equal_grids_pictures import draw
from run_measures import area
from seed_tables import Runs, differences, marked, measures, reported, table
from study_runs import Results

from exgrpo.console import in_one_line

FIRST, *REPLAY = (*METHODS, *CHOSEN)
# the rates at which a method ran; on each task it has the one that did best there, by the reported runs
FIRST_RATES = (FIRST, "on-policy, half rate", "on-policy, quarter rate")
BEST_RATE = ", best rate"
AT_BEST_RATE = {
    f"past groups for dead{BEST_RATE}": (
        "past groups for dead",
        "past groups for dead, half rate",
        "past groups for dead, quarter rate",
    ),
    f"past groups beside{BEST_RATE}": ("past groups beside, half rate", "past groups beside, quarter rate"),
}


def against(results: Results, task: str) -> dict[str, Runs]:
    """Method -> its runs beside on-policy GRPO's, of the seeds that both have, with what won on the first task; and
    at the best of its rates, or with what the task's own search found, if there was one."""
    found: dict[str, Runs] = {}
    suffix = "" if task == TASKS[0] else CARRIED
    for name in REPLAY:
        if runs := reported(results, task, [first + suffix for first in (FIRST, name)]):
            found[name] = {each.removesuffix(CARRIED): rows for each, rows in runs.items()}
    for name, rates in AT_BEST_RATE.items():
        method = name.removesuffix(BEST_RATE)
        own = {} if task == TASKS[0] else reported(results, task, [FIRST, method])
        if own:
            found[name] = {FIRST: own[FIRST], name: own[method]}
            continue
        first, mine = ran(results, task, FIRST_RATES), ran(results, task, rates)
        runs = reported(results, task, [*first, *mine]) if first and mine else {}
        if runs:
            found[name] = {FIRST: best(runs, first), name: best(runs, mine)}
    return found


def ran(results: Results, task: str, methods: Iterable[str]) -> list[str]:
    """Those of the methods that were reported on a task, some as what won on the first one."""
    there = {run.method for run in results.found if run.task == task and run.is_reported}
    return [each for name in methods for each in (name, name + CARRIED) if each in there]


def best(runs: Runs, rates: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """The runs of the rate that did best over the run, in the mean of the seeds."""
    return max((runs[rate] for rate in rates), key=lambda each: float(np.mean([run["area"] for run in each])))


def gaps(runs: Runs, name: str) -> dict[str, list[float]]:
    """Each measure of a method less on-policy GRPO's, a value a seed."""
    return differences(runs, name) | {"by time": by_processor_time(runs, name)}


def by_processor_time(runs: Runs, name: str) -> list[float]:
    """Mean accuracy over the processor time of the faster of the two, to the first method, a value a seed."""
    found = []
    for run, other in zip(runs[name], runs[FIRST], strict=True):
        seconds = min(run["seconds"], other["seconds"])
        found.append(over_seconds(run, seconds) - over_seconds(other, seconds))
    return found


def over_seconds(run: Mapping[str, Any], seconds: float) -> float:
    """Mean accuracy over the first so many processor seconds of a run; its tokens came evenly."""
    pace = run["seconds"] / run["curve"][-1]["generated"]
    curve = [{"generated": row["generated"] * pace, "test": row["test"]} for row in run["curve"]]
    return area(curve, seconds, "test")


def price(runs: Runs, name: str) -> float:
    """Processor time, on-policy GRPO = 1."""
    mine, first = (sum(run["seconds"] for run in runs[each]) for each in (name, FIRST))
    return float(mine / first)


def base_row(results: Results, task: str) -> str:
    """Of the bases that the runs start from, one value a draw of questions and base."""
    each = [measures(run) for run in reported(results, task, [BASE]).get(BASE, ())]
    if not each:
        return f"| {BASE}, not measured yet |"
    return f"| {BASE} | " + " | ".join(str(estimate([one[key] for one in each])) for key in each[0]) + " |"


def of_task(results: Results, task: str) -> str:
    """Markdown: each method's row and what it is ahead of on-policy GRPO, the base's row, the controls."""
    parts = [base_row(results, task)]
    for name, runs in against(results, task).items():
        by_time = f"{len(runs[name])} seeds; by processor time {marked(by_processor_time(runs, name))}"
        parts.append(f"{table(runs)}\n\n{name}: {by_time}, of which it takes {price(runs, name):.1f}")
    for control, (method, _) in CONTROLS.items():
        if pair := reported(results, task, [method, control]):
            parts.append(table(pair))
    return "\n\n".join(parts)


def base_level(results: Results, task: str) -> str:
    each = [measures(run)["over the run"] for run in reported(results, task, [BASE]).get(BASE, ())]
    return str(estimate(each)).partition(" ")[0] if each else "not measured"


def summary(results: Results, every: Mapping[str, Mapping[str, Runs]], name: str) -> str:
    """Markdown: of a method a row a task and one with tasks as units, what it gains and what it costs."""
    titles = ["over the run", "at the end", "pass@32", "trained less held-out", "by time"]
    lines = [f"| task | {BASE} | {FIRST} | {' | '.join(titles)} | time |", "| --- |" + " --- |" * (3 + len(titles))]
    of_tasks = {task: gaps(pairs[name], name) for task, pairs in every.items() if name in pairs}
    for task, found in of_tasks.items():
        runs = every[task][name]
        level = estimate([measures(run)["over the run"] for run in runs[FIRST]])
        cells = [base_level(results, task), str(level), *(marked(found[title]) for title in titles)]
        lines.append(f"| {task} | {' | '.join(cells)} | {price(runs, name):.1f} |")
    units = [marked([float(np.mean(found[title])) for found in of_tasks.values()]) for title in titles]
    return "\n".join([*lines, f"| {len(of_tasks)} tasks as units | | | {' | '.join(units)} | |"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print each task's tables, then each method's, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--picture", type=Path, default=study_folders.PICTURES / "equal-grids.png")
    options = parser.parse_args(arguments)
    results = Results(options.file)
    seconds = sum(row["seconds"] for row in results.found.values())
    print(f"{len(results.found)} runs, {seconds / 3600:.1f} processor hours")
    every = {task: pairs for task in TASKS if (pairs := against(results, task))}
    for task in every:
        print(f"\n## {task}\n\n{of_task(results, task)}")
    for name in (*REPLAY, *AT_BEST_RATE):
        if any(name in pairs for pairs in every.values()):
            print(f"\n## {name}\n\n{summary(results, every, name)}")
    if every:
        ahead = {task: {name: gaps(runs, name) for name, runs in pairs.items()} for task, pairs in every.items()}
        draw(ahead, options.picture)


if __name__ == "__main__":
    with in_one_line("equal_grids_report.py"):
        main()
