"""Which part of the method matters: a grid of settings x seeds on the minimal loop, with table and picture.

    python lab/studies/ablate.py 1-replay 3-trajectories [--task sum] [--seeds 5] [--steps 40] [--jobs 2]
    python lab/studies/ablate.py --grid trainer.experience_ratio=0.25,0.5,0.75 [--task mod]

Each run is a file below --output; what is there is not run again: a stopped study goes on with the same command, and
studies share their runs. A run uses one core. Differences to the baseline, the first setting, are paired by seed;
intervals are 95 % by Student's t over seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import study_folders  # noqa: F401
from studies import COMMON, STUDIES

from exgrpo.console import in_one_line
from exgrpo.saved import durable


@dataclass(frozen=True)
class Run:
    """One training: a task, settings as key=value, a seed. Its file is named by all of them."""

    task: str
    overrides: tuple[str, ...]
    seed: int

    def file(self, folder: Path) -> Path:
        digest = hashlib.sha256("\n".join(sorted(self.overrides)).encode()).hexdigest()[:12]
        return folder / self.task / f"{digest}-{self.seed}.json"


def parse(overrides: Sequence[str]) -> tuple[Any, ...]:
    """Experience, loss, loop and objective of a run's settings; ValueError names what is not one."""
    from minimal_loop import settings
    from study_loop import StudyLoop
    from variants import objective_of

    own = dict(override.removeprefix("study.").split("=", 1) for override in overrides if override.startswith("study."))
    others = [override for override in overrides if not override.startswith("study.")]
    experience, loss, loop = settings(others, StudyLoop)
    return experience, loss, loop, objective_of(own)


def perform(run: Run, folder: Path) -> float:
    """Train, and write the run's file; returns the seconds it took."""
    import torch

    torch.set_num_threads(1)
    from skills import load
    from study_loop import train

    started = time.monotonic()
    experience, loss, loop, objective = parse(run.overrides)
    policy, task = load(run.task)
    curve = list(train(policy, task, experience, loss, replace(loop, seed=run.seed), objective))
    seconds = time.monotonic() - started
    path = run.file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"task": run.task, "settings": sorted(run.overrides), "seed": run.seed, "seconds": seconds}
    durable.replace_file(path, json.dumps(facts | {"curve": curve}))
    return seconds


def workers(jobs: int) -> ProcessPoolExecutor:
    """Processes for ``jobs`` runs at a time, each on one core: a run is as fast there, and several are run at once."""
    os.environ["OMP_NUM_THREADS"] = "1"
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_without_chatter)


def _without_chatter() -> None:
    """A study's output is its own: no progress bar a model, no line an epoch."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logging.getLogger("exgrpo").setLevel(logging.ERROR)


def perform_all(
    runs: Sequence[Run],
    folder: Path,
    executor: ProcessPoolExecutor,
    perform: Callable[[Run, Path], float] = perform,
) -> None:
    """Do the runs whose file is missing, in order of the seeds."""
    missing = [run for run in dict.fromkeys(runs) if not run.file(folder).exists()]
    print(f"{len(set(runs)) - len(missing)} runs are there, {len(missing)} to do", flush=True)
    if not missing:
        return
    started = time.monotonic()
    tasks = {executor.submit(perform, run, folder): run for run in sorted(missing, key=lambda run: run.seed)}
    for done, task in enumerate(as_completed(tasks), 1):
        run, spent = tasks[task], time.monotonic() - started
        left = spent / done * (len(missing) - done)
        progress = f"{done}/{len(missing)}, {task.result():.0f} s, {left / 60:.0f} min left"
        print(f"{progress}: {run.task} seed {run.seed} {' '.join(run.overrides)}", flush=True)


def grid(axes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """name -> settings of every combination of ``key=v1,v2,...``."""
    choices = []
    for axis in axes:
        key, equals, values = axis.partition("=")
        if not equals or not values:
            raise ValueError(f"--grid {axis}: must be key=value,value,...")
        choices.append([f"{key}={value}" for value in values.split(",")])
    return {" ".join(combination): combination for combination in itertools.product(*choices)}


def main() -> None:
    """Run what is missing, write a table and a picture of each study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}")
    parser.add_argument("--grid", nargs="+", default=[], metavar="KEY=V,V", help="a study of your own")
    parser.add_argument("--task", default="sum", help="sum or mod (default sum)")
    parser.add_argument("--seeds", type=int, default=5, help="0..N-1 (default 5)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: cores)")
    parser.add_argument("--output", type=Path, default=Path("outputs/ablation"))
    arguments = parser.parse_args()
    try:
        chosen = plan(arguments)
    except ValueError as error:
        parser.error(str(error))
    runs = {
        study: {
            name: [Run(arguments.task, settings, seed) for seed in range(arguments.seeds)]
            for name, settings in named.items()
        }
        for study, named in chosen.items()
    }
    every_run = [run for named in runs.values() for each in named.values() for run in each]
    with workers(arguments.jobs) as executor:
        perform_all(every_run, arguments.output, executor)
    from comparison import compare

    for study, named in runs.items():
        curves = {
            name: [json.loads(run.file(arguments.output).read_text())["curve"] for run in each]
            for name, each in named.items()
        }
        print(compare(study, arguments.task, curves, arguments.output))


def plan(arguments: argparse.Namespace) -> dict[str, dict[str, tuple[str, ...]]]:
    """study -> name -> settings, all of them checked before anything runs."""
    if not arguments.studies and not arguments.grid:
        raise ValueError(f"no study: give some of {', '.join(STUDIES)}, or --grid")
    if unknown := [name for name in arguments.studies if name not in STUDIES]:
        raise ValueError(f"{unknown[0]}: must be one of {', '.join(STUDIES)}")
    from skills import SKILLS  # takes seconds to import

    if arguments.task not in SKILLS:
        raise ValueError(f"--task {arguments.task}: must be one of {', '.join(SKILLS)}")
    for name in ("seeds", "steps", "jobs"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} {getattr(arguments, name)}: must be at least 1")
    chosen = {name: STUDIES[name] for name in arguments.studies}
    if arguments.grid:
        chosen["grid"] = grid(arguments.grid)
    steps = f"loop.steps={arguments.steps}"
    complete = {
        study: {name: (steps, *COMMON, *settings) for name, settings in named.items()}
        for study, named in chosen.items()
    }
    for named in complete.values():
        for settings in named.values():
            parse(settings)
    return complete


if __name__ == "__main__":
    with in_one_line("ablate.py", "the same command goes on"):
        main()
