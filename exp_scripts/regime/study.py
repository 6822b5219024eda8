"""Where success is rare: tuned on-policy GRPO, tuned ExGRPO and tuned replay of groups, on four tasks.

    python exp_scripts/regime/study.py [TASK ...] [--seeds 10] [--shaping] [--jobs 2] [--output outputs/rare-success]

By docs/experiments/rare-success-protocol.md: each method is searched on seeds of its own, then run on the seeds that
are reported. Each run is a file: a stopped study goes on with the same command. `report.py` makes the tables.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "ablation")]

from ablate import Run, perform_all, workers  # noqa: E402
from methods import (  # noqa: E402
    FINALISTS,
    METHODS,
    SEARCH_SEEDS,
    SHAPING,
    SHAPING_SEEDS,
    Method,
    Settings,
    overrides,
)
from rare_tasks import RARE_TASKS, RareTask  # noqa: E402
from runs import area, perform, read  # noqa: E402

Perform = Callable[[list[Run]], None]


def search(task: RareTask, folder: Path, do: Perform) -> dict[str, tuple[str, ...]]:
    """Method -> the settings that won its search. Rounds of all methods are done together."""

    def runs(settings: Settings, rate: str, seeds: tuple[int, ...] = SEARCH_SEEDS[:1]) -> list[Run]:
        return [Run(task.name, overrides(settings, rate, task.budget), seed) for seed in seeds]

    def score(settings: Settings, rate: str, seeds: tuple[int, ...] = SEARCH_SEEDS[:1]) -> float:
        found = [area(read(run, folder)["curve"], task.budget, task.measure) for run in runs(settings, rate, seeds)]
        return float(np.mean(found))

    do([run for method in METHODS.values() for rate in task.rates for run in runs(method.first, rate)])
    rate_of = {name: max(task.rates, key=lambda rate: score(METHODS[name].first, rate)) for name in METHODS}
    tried = {name: _candidates(METHODS[name], task.rates, rate_of[name]) for name in METHODS}
    do([run for each in tried.values() for settings, rate in each for run in runs(settings, rate)])
    finalists = {name: sorted(each, key=lambda one: -score(one[0], one[1]))[:FINALISTS] for name, each in tried.items()}
    do([run for each in finalists.values() for settings, rate in each for run in runs(settings, rate, SEARCH_SEEDS)])
    best = {name: max(each, key=lambda one: score(one[0], one[1], SEARCH_SEEDS)) for name, each in finalists.items()}
    return {name: overrides(settings, rate, task.budget) for name, (settings, rate) in best.items()}


def _candidates(method: Method, rates: tuple[str, ...], rate: str) -> list[tuple[Settings, str]]:
    """Every rate with the first settings, and each alternative at the best rate."""
    others = [({**method.first, **alternative}, rate) for alternative in method.alternatives]
    return [(method.first, each) for each in rates] + others


def shaping(task: str, chosen: Settings, seeds: int) -> list[Run]:
    """ExGRPO's runs with its replayed trajectories treated in other ways; `chosen` are the settings that won for it."""
    changed = [{**chosen, **settings} for settings in SHAPING.values()]
    return [Run(task, as_overrides(each), seed) for seed in range(min(seeds, SHAPING_SEEDS)) for each in changed]


def as_overrides(settings: Settings) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in settings.items())


def main() -> None:
    """Search, then the reported seeds, task after task; writes chosen.json beside the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*", default=list(RARE_TASKS), help=f"of {', '.join(RARE_TASKS)}")
    parser.add_argument("--seeds", type=int, default=10, help="reported: 0..N-1 (default 10)")
    parser.add_argument("--shaping", action="store_true", help="then ExGRPO without shaping, and other ways, 5 seeds")
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
                published = dict(setting.split("=", 1) for setting in chosen["ExGRPO"])
                perform_all(shaping(name, published, arguments.seeds), folder / "reported", executor, perform)


if __name__ == "__main__":
    main()
