"""Where success is rare: tuned on-policy GRPO, tuned ExGRPO and tuned replay of groups, task by task.

    python exp_scripts/regime/study.py [TASK ...] [--seeds 10] [--shaping] [--round_two] [--round_three]
        [--jobs 2] [--output outputs/rare-success]

By docs/appendix/rare-success-protocol.md: each method is searched on seeds of its own, then run on the seeds that
are reported. Each run is a file: a stopped study goes on with the same command. `report.py` makes the tables.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import study_folders  # noqa: F401
from ablate import Run, perform_all, workers
from methods import (
    FINALISTS,
    METHODS,
    ROUND_THREE,
    ROUND_TWO,
    SHAPING,
    SHAPING_SEEDS,
    THIRD_SEEDS,
    Method,
    Settings,
    overrides,
)
from rare_runs import area, perform, read
from rare_tasks import RARE_TASKS, RareTask

Perform = Callable[[list[Run]], None]


def search(task: RareTask, folder: Path, do: Perform) -> dict[str, tuple[str, ...]]:
    """Method -> the settings that won its search. Rounds of all methods are done together."""

    def runs(settings: Settings, rate: str, seeds: Sequence[int] = task.search_seeds[:1]) -> list[Run]:
        return [Run(task.name, overrides(settings, rate, task.budget), seed) for seed in seeds]

    def score(settings: Settings, rate: str, seeds: Sequence[int] = task.search_seeds[:1]) -> float:
        found = [area(read(run, folder)["curve"], task.budget, task.measure) for run in runs(settings, rate, seeds)]
        return float(np.mean(found))

    do([run for method in METHODS.values() for rate in task.rates for run in runs(method.first, rate)])
    rate_of = {name: max(task.rates, key=lambda rate: score(METHODS[name].first, rate)) for name in METHODS}
    tried = {name: _candidates(METHODS[name], task.rates, rate_of[name]) for name in METHODS}
    do([run for each in tried.values() for settings, rate in each for run in runs(settings, rate)])
    finalists = {name: sorted(each, key=lambda one: -score(one[0], one[1]))[:FINALISTS] for name, each in tried.items()}
    do(
        [
            run
            for each in finalists.values()
            for settings, rate in each
            for run in runs(settings, rate, task.search_seeds)
        ]
    )
    best = {
        name: max(each, key=lambda one: score(one[0], one[1], task.search_seeds)) for name, each in finalists.items()
    }
    return {name: overrides(settings, rate, task.budget) for name, (settings, rate) in best.items()}


def _candidates(method: Method, rates: tuple[str, ...], rate: str) -> list[tuple[Settings, str]]:
    """Every rate with the first settings, and each alternative at the best rate."""
    others = [({**method.first, **alternative}, rate) for alternative in method.alternatives]
    return [(method.first, each) for each in rates] + others


def changed(task: str, won: Sequence[str], changes: Mapping[str, Settings], seeds: Sequence[int]) -> list[Run]:
    """Runs of the settings that won for a method, with one change each."""
    settings = dict(setting.split("=", 1) for setting in won)
    complete = [tuple(f"{k}={v}" for k, v in {**settings, **change}.items()) for change in changes.values()]
    return [Run(task, each, seed) for seed in seeds for each in complete]


def main() -> None:
    """Search, then the reported seeds, task after task; writes chosen.json beside the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*", default=list(RARE_TASKS), help=f"of {', '.join(RARE_TASKS)}")
    parser.add_argument("--seeds", type=int, default=10, help="reported: 0..N-1 (default 10)")
    parser.add_argument("--shaping", action="store_true", help="then ExGRPO without shaping, and other ways, 5 seeds")
    parser.add_argument("--round_two", action="store_true", help="then group replay with one change each, search seeds")
    parser.add_argument("--round_three", action="store_true", help="then the best of these changes, 10 seeds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: cores)")
    parser.add_argument("--output", type=Path, default=Path("outputs/rare-success"))
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.task if name not in RARE_TASKS]:
        parser.error(f"{unknown[0]}: must be one of {', '.join(RARE_TASKS)}")
    folder = arguments.output
    with workers(arguments.jobs) as executor:
        searching = functools.partial(perform, last=False)
        for name in arguments.task:
            do = lambda runs: perform_all(runs, folder / "search", executor, searching)  # noqa: E731
            task = RARE_TASKS[name]
            chosen = search(RARE_TASKS[task.searched_on or name], folder / "search", do)
            print(json.dumps({name: chosen}, indent=1), flush=True)
            (folder / f"chosen-{name}.json").write_text(json.dumps(chosen, indent=1) + "\n")
            reported = [Run(name, settings, seed) for seed in range(arguments.seeds) for settings in chosen.values()]
            perform_all(reported, folder / "reported", executor, perform)
            if arguments.shaping:
                others = changed(name, chosen["ExGRPO"], SHAPING, range(min(arguments.seeds, SHAPING_SEEDS)))
                perform_all(others, folder / "reported", executor, perform)
            if arguments.round_three:
                third = changed(name, chosen["group replay"], ROUND_THREE, range(min(arguments.seeds, THIRD_SEEDS)))
                perform_all(third, folder / "reported", executor, perform)
            if arguments.round_two:
                do(changed(name, chosen["group replay"], {"none": {}, **ROUND_TWO}, task.search_seeds))


if __name__ == "__main__":
    main()
