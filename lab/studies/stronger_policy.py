"""A base that a teacher made right on nearly half continues with on-policy GRPO, ExGRPO and past groups.

    python lab/studies/stronger_policy.py [--jobs 2] [--file FILE]   run what is missing, print the table

By lab/pages/stronger-policy.md. Each run is a row of the file: a stopped study goes on with the same command.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import study_folders
import torch
from ablate import workers
from comparison import estimate
from equal_grids import BASE, BASES, BESIDE, DRAWS, FOR_DEAD, METHODS, trained_from
from equal_grids_report import by_processor_time, price
from fast_policy import FastPolicy
from minimal_loop import Task
from rare_tasks import RARE_TASKS, load
from seed_tables import Runs, differences, marked, measures, reported
from skills import Phase, teach
from study_runs import FIRST_SEARCH_SEED, Point, Results, Run, parser_of

from exgrpo.console import in_one_line

FILE = study_folders.RUNS / "stronger-policy.parquet"
TASKS = ("caesar", "backward", "rare-sum")
TAUGHT = Phase(updates=25, careful=1.0, lr=3e-4)  # right answers to questions that no run asks
RATES = ("2.5e-5", "5e-5", "1e-4", "2e-4")
SEARCHED, REPORTED = 2, 10  # seeds
FRESH, GROUPS = Point("", "2", "4", "yes"), Point("", "4", "8", "yes")  # what won on caesar, but for the rate
# method -> its point but for the rate, and its settings
ENTRIES: dict[str, tuple[Point, dict[str, str]]] = {
    "on-policy": (FRESH, METHODS["on-policy"]),
    "ExGRPO": (GROUPS, METHODS["ExGRPO"]),
    "past groups beside": (GROUPS, BESIDE),
    "past groups for dead": (GROUPS, FOR_DEAD),
}
FIRST = "on-policy"
HALF, OTHER = "on-policy, half rate", "on-policy, the other rate"  # a control: two seeds choose a rate roughly
TITLES = ("over the run", "at the end", "Mean@32", "pass@32", "trained less held-out")
START = Run("", BASE, Point("0", "0", "0", "no"), 0)


def taught(name: str, draw: int, base: int) -> tuple[FastPolicy, Task]:
    """The stronger policy, and the questions of a run."""
    lessons = RARE_TASKS[name]
    policy, task = load(lessons, draw, base)
    torch.manual_seed(base)
    teach(policy.model, policy.tokenizer, lessons, TAUGHT, set(lessons.kept_back()), random.Random(base))
    policy.model.eval()
    return policy, task


def perform(run: Run) -> dict[str, Any]:
    """Teach, then train for half of the task's tokens: the policy begins halfway."""
    torch.set_num_threads(1)
    own = {} if run.method == BASE else ENTRIES[FIRST if run.method == HALF else run.method][1]
    policy, task = taught(run.task, run.seed % DRAWS, run.seed % BASES)
    return trained_from(policy, task, run, own, RARE_TASKS[run.task].budget // 2)


def at_rate(task: str, method: str, rate: str, seed: int) -> Run:
    return Run(task, method, ENTRIES[method][0]._replace(rate=rate), seed)


def searched(task: str, method: str, rate: str) -> list[Run]:
    return [at_rate(task, method, rate, FIRST_SEARCH_SEED + seed) for seed in range(SEARCHED)]


def best_rate(results: Results, task: str, method: str) -> str:
    return max(RATES, key=lambda rate: results.mean(searched(task, method, rate)))


def reports(results: Results, task: str, seed: int) -> list[Run]:
    """Each method at its best rate, and the control."""
    runs = [at_rate(task, method, best_rate(results, task, method), seed) for method in ENTRIES]
    first = runs[0]
    half = first.point._replace(rate=f"{float(first.point.rate) / 2:.3g}")
    return [*runs, first._replace(method=HALF, point=half)]


def of_task(results: Results, task: str) -> Runs:
    """Method and rate -> its reported runs; on-policy GRPO's first, at the better of its two rates by these runs."""
    runs = reported(results, task, [*ENTRIES, HALF])
    better = max((FIRST, HALF), key=lambda name: float(np.mean([run["area"] for run in runs[name]])))
    return {FIRST: runs[better], OTHER: runs[HALF if better == FIRST else FIRST]} | {
        name: runs[name] for name in ENTRIES if name != FIRST
    }


def table(results: Results) -> str:
    """Markdown: the policy that all continue from, on-policy GRPO, and what the others are ahead of it; last with
    tasks as units."""
    lines = [f"| task | method | {' | '.join([*TITLES, 'by time'])} | time |", "| --- |" + " --- |" * 8]
    units: dict[str, list[list[float]]] = {}
    for task in TASKS:
        runs = of_task(results, task)
        for name, each in ((BASE, reported(results, task, [BASE])[BASE]), (FIRST, runs[FIRST])):
            levels = [str(estimate([measures(run)[title] for run in each])) for title in TITLES]
            lines.append(f"| {task} | {name} | {' | '.join(levels)} | | |")
        for name in list(runs)[1:]:
            gaps = differences(runs, name) | {"by time": by_processor_time(runs, name)}
            kept = [gaps[title] for title in (*TITLES, "by time")]
            units.setdefault(name, []).append([float(np.mean(each)) for each in kept])
            lines.append(f"| | {name} | {' | '.join(map(marked, kept))} | {price(runs, name):.1f} |")
    for name, tasks in units.items():
        lines.append(f"| tasks as units | {name} | {' | '.join(map(marked, zip(*tasks, strict=True)))} | |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Search each method's rate, run the reported seeds at it, print the table."""
    options = parser_of(__doc__, FILE).parse_args(arguments)
    results = Results(options.file)
    with workers(options.jobs) as executor:
        search = [run for task in TASKS for method in ENTRIES for rate in RATES for run in searched(task, method, rate)]
        results.do(search, executor, perform)
        runs = [START._replace(task=task, seed=seed) for task in TASKS for seed in range(DRAWS * BASES)]
        for seed in range(REPORTED):
            runs += [run for task in TASKS for run in reports(results, task, seed)]
        results.do(runs, executor, perform)
    for task in TASKS:
        print(f"{task}: {', '.join(f'{name} {best_rate(results, task, name)}' for name in ENTRIES)}")
    print(f"\n{table(results)}")


if __name__ == "__main__":
    with in_one_line("stronger_policy.py", "the same command goes on"):
        main()
