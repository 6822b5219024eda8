"""Group replay with one change each: what keeps its lead and its breadth, on seeds that nothing else is reported of.

    python lab/studies/breadth_rounds.py [--jobs 2] [--file FILE]

By the third amendment of lab/pages/equal-grids-protocol.md. Each run is a row of the file: a stopped study goes on
with the same command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import study_folders
from comparison import estimate
from equal_grids import BESIDE, FOR_DEAD, METHODS, trained
from seed_tables import differences, marked, measures, reported, table
from study_folders import RULES
from study_runs import Point, Results, Run, done

from exgrpo.console import in_one_line

FILE = study_folders.RUNS / "breadth-rounds.parquet"
TASKS = ("caesar", "backward", "rare-mod")
SEEDS = range(500, 506)  # each draw of questions with each base once
ON_POLICY, GROUPS = Point("1e-4", "2", "4", "yes"), Point("1e-4", "4", "8", "yes")  # what won on caesar
DRAWS = {**BESIDE, "trainer.experience_ratio": "0", "loop.questions": "4"}  # the objective draws, the keys do not
FIRST = "never retiring"  # of which each arm is one change
# arm -> its point and its settings
ARMS: dict[str, tuple[Point, dict[str, str]]] = {
    "group replay": (GROUPS, METHODS["group replay"]),
    "on-policy": (ON_POLICY, METHODS["on-policy"]),
    FIRST: (GROUPS, BESIDE),
    "half the rate": (GROUPS._replace(rate="5e-5"), BESIDE),
    "by need": (GROUPS, {**DRAWS, "study.objective": "stored_by_need"}),
    "for dead": (GROUPS, FOR_DEAD),
    "fading": (GROUPS, {**BESIDE, "policy_loss.off_policy_loss": f"{RULES}:fading"}),
    "once": (GROUPS, {**BESIDE, "study.objective": "stored_once"}),
    "cooldown": (GROUPS, {**DRAWS, "study.objective": "stored_by_cooldown"}),
    "UCB": (GROUPS, {**DRAWS, "study.objective": "stored_by_ucb"}),
    "Beta": (GROUPS, {**DRAWS, "study.objective": "stored_by_beta"}),
    "four uses": (GROUPS, {**DRAWS, "study.objective": "stored_by_four_uses"}),
    "youth": (GROUPS, {**DRAWS, "study.objective": "stored_by_youth"}),
    "20 steps old": (GROUPS, {**BESIDE, "trainer.experience_max_age": "20"}),
    ".1 drifted": (GROUPS, {**BESIDE, "trainer.exp_max_drift": ".1"}),
    "asymre": (GROUPS, {**BESIDE, "policy_loss.off_policy_loss": f"{RULES}:asymre"}),
    "m2po": (GROUPS, {**BESIDE, "policy_loss.off_policy_loss": f"{RULES}:m2po"}),
    "clip": (GROUPS, {**BESIDE, "policy_loss.off_policy_loss": "clip"}),
}


def perform(run: Run) -> dict[str, Any]:
    return trained(run, ARMS[run.method][1])


def summary(results: Results) -> str:
    """Markdown: a row an arm, means over tasks and seeds; gaps to never retiring are of the same task and seed."""
    of_tasks = [reported(results, task, ARMS) for task in TASKS]
    runs = {name: [run for found in of_tasks for run in found[name]] for name in ARMS}
    titles = ("over the run", "at the end", "Mean@32", "pass@32", "trained less held-out")
    lines = [f"| arm | {' | '.join(titles)} | over the run, to {FIRST} | time |", "| --- |" + " --- |" * 7]
    on_policy = sum(run["seconds"] for run in runs["on-policy"])
    for name, each in runs.items():
        means = [str(estimate([float(np.mean([measures(run)[title] for run in each]))])) for title in titles]
        gaps = differences({FIRST: runs[FIRST], name: each}, name)["over the run"]
        time = sum(run["seconds"] for run in each) / on_policy
        lines.append(f"| {name} | {' | '.join(means)} | {'' if name == FIRST else marked(gaps)} | {time:.1f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print the arms' table and one a task."""
    runs = [Run(task, name, point, seed) for seed in SEEDS for task in TASKS for name, (point, _) in ARMS.items()]
    results = done(__doc__, FILE, runs, perform, arguments)
    print(summary(results))
    for task in TASKS:
        print(f"\n## {task}\n\n{table(reported(results, task, ARMS))}")


if __name__ == "__main__":
    with in_one_line("breadth_rounds.py", "the same command goes on"):
        main()
