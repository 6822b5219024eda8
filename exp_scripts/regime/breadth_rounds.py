"""Group replay with one change each: what keeps its lead and its breadth, on seeds that nothing else is reported of.

    python exp_scripts/regime/breadth_rounds.py [--jobs 2] [--file FILE]

By the third amendment of docs/appendix/equal-grids-protocol.md. Each run is a line of the file: a stopped study goes on
with the same command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import study_folders
from equal_grids import BESIDE, FOR_DEAD, METHODS, trained
from seed_tables import reported, table
from study_runs import Point, Run, done

from exgrpo.console import in_one_line

FILE = study_folders.ROOT / "docs" / "experiments" / "breadth-rounds.jsonl"
TASKS = ("caesar", "backward", "rare-mod")
SEEDS = range(500, 506)  # each draw of questions with each base once
ON_POLICY, GROUPS = Point("1e-4", "2", "4", "yes"), Point("1e-4", "4", "8", "yes")  # what won on caesar
DRAWS = {**BESIDE, "trainer.experience_ratio": "0", "loop.questions": "4"}  # the objective draws, the keys do not
# arm -> its point and its settings
ARMS: dict[str, tuple[Point, dict[str, str]]] = {
    "group replay": (GROUPS, METHODS["group replay"]),
    "on-policy": (ON_POLICY, METHODS["on-policy"]),
    "never retiring": (GROUPS, BESIDE),
    "half the rate": (GROUPS._replace(rate="5e-5"), BESIDE),
    "by need": (GROUPS, {**DRAWS, "study.objective": "stored_by_need"}),
    "for dead": (GROUPS, FOR_DEAD),
    "fading": (GROUPS, {**BESIDE, "policy_loss.off_policy_loss": "pkg://study_rules:fading"}),
    "once": (GROUPS, {**BESIDE, "study.objective": "stored_once"}),
    "cooldown": (GROUPS, {**DRAWS, "study.objective": "stored_by_cooldown"}),
    "UCB": (GROUPS, {**DRAWS, "study.objective": "stored_by_ucb"}),
    "Beta": (GROUPS, {**DRAWS, "study.objective": "stored_by_beta"}),
    "four uses": (GROUPS, {**DRAWS, "study.objective": "stored_by_four_uses"}),
    "youth": (GROUPS, {**DRAWS, "study.objective": "stored_by_youth"}),
    "20 steps old": (GROUPS, {**BESIDE, "trainer.experience_max_age": "20"}),
    ".1 drifted": (GROUPS, {**BESIDE, "trainer.exp_max_drift": ".1"}),
    "asymre": (GROUPS, {**BESIDE, "policy_loss.off_policy_loss": "asymre"}),
    "m2po": (GROUPS, {**BESIDE, "policy_loss.off_policy_loss": "m2po"}),
    "clip": (GROUPS, {**BESIDE, "policy_loss.off_policy_loss": "clip"}),
}


def perform(run: Run) -> dict[str, Any]:
    return trained(run, ARMS[run.method][1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print a table a task."""
    runs = [Run(task, name, point, seed) for seed in SEEDS for task in TASKS for name, (point, _) in ARMS.items()]
    results = done(__doc__, FILE, runs, perform, arguments)
    for task in TASKS:
        print(f"\n## {task}\n\n{table(reported(results, task, ARMS))}")


if __name__ == "__main__":
    with in_one_line("breadth_rounds.py", "the same command goes on"):
        main()
