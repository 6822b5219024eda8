"""A base that a teacher made right on nearly half continues with on-policy GRPO, ExGRPO and past groups.

    python exp_scripts/regime/stronger_policy.py [--jobs 2] [--file FILE]   run what is missing, print the tables

By docs/appendix/stronger-policy.md. Each run is a line of the file: a stopped study goes on with the same command.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import study_folders
import torch
from ablate import workers
from equal_grids import BASE, BASES, BESIDE, DRAWS, FOR_DEAD, METHODS, trained_from
from equal_grids_report import by_processor_time, price
from fast_policy import FastPolicy
from minimal_loop import Task
from rare_tasks import RARE_TASKS, load
from seed_tables import Runs, differences, marked, reported, table
from skills import Phase, teach
from study_runs import FIRST_SEARCH_SEED, Point, Results, Run, parser_of

from exgrpo.console import in_one_line

FILE = study_folders.ROOT / "docs" / "experiments" / "stronger-policy.jsonl"
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
    own = {} if run.method == BASE else ENTRIES[run.method][1]
    policy, task = taught(run.task, run.seed % DRAWS, run.seed % BASES)
    return trained_from(policy, task, run, own, RARE_TASKS[run.task].budget // 2)


def at_rate(task: str, method: str, rate: str, seed: int) -> Run:
    return Run(task, method, ENTRIES[method][0]._replace(rate=rate), seed)


def searched(task: str, method: str, rate: str) -> list[Run]:
    return [at_rate(task, method, rate, FIRST_SEARCH_SEED + seed) for seed in range(SEARCHED)]


def best_rate(results: Results, task: str, method: str) -> str:
    return max(RATES, key=lambda rate: results.mean(searched(task, method, rate)))


def of_task(results: Results, task: str) -> str:
    """Markdown: the stronger policy's own row, each method's, and what it is ahead of on-policy GRPO."""
    rates = ", ".join(f"{method} {best_rate(results, task, method)}" for method in ENTRIES)
    runs = reported(results, task, ENTRIES)
    prices = "; ".join(
        f"{name} {price(runs, name):.1f}, by processor time {marked(by_processor_time(runs, name))}"
        for name in list(runs)[1:]
    )
    start = table(reported(results, task, [BASE])).splitlines()[2]
    return f"## {task}\n\nRates: {rates}. Time: {prices}.\n\n{table(runs)}\n{start}"


def units(every: Sequence[Runs]) -> str:
    """Markdown: what each method is ahead of on-policy GRPO, tasks as units."""
    titles = ("over the run", "at the end", "Mean@32", "pass@32", "trained less held-out")
    lines = [f"| to on-policy, tasks as units | {' | '.join(titles)} |", "| --- |" + " --- |" * len(titles)]
    for name in list(ENTRIES)[1:]:
        gaps = [differences(runs, name) for runs in every]
        cells = [marked([float(np.mean(found[title])) for found in gaps]) for title in titles]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Search each method's rate, run the reported seeds at it, print the tables."""
    options = parser_of(__doc__, FILE).parse_args(arguments)
    results = Results(options.file)
    with workers(options.jobs) as executor:
        search = [run for task in TASKS for method in ENTRIES for rate in RATES for run in searched(task, method, rate)]
        results.do(search, executor, perform)
        runs = [START._replace(task=task, seed=seed) for task in TASKS for seed in range(DRAWS * BASES)]
        for seed in range(REPORTED):
            for task in TASKS:
                runs += [at_rate(task, method, best_rate(results, task, method), seed) for method in ENTRIES]
        results.do(runs, executor, perform)
    for task in TASKS:
        print(f"{of_task(results, task)}\n")
    print(units([reported(results, task, ENTRIES) for task in TASKS]))


if __name__ == "__main__":
    with in_one_line("stronger_policy.py", "the same command goes on"):
        main()
