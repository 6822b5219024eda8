"""The runs of a study: one training each, and a file with a row for each that is done."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import run_files
import study_folders  # noqa: F401
from ablate import workers

AXES = ("rate", "fresh", "epochs", "clip")  # of a point
FIRST_SEARCH_SEED = 1000  # seeds of a search; smaller ones are reported


def parser_of(description: str | None, file: Path) -> argparse.ArgumentParser:
    """The command line of a study: how many runs at a time, and the file."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: cores)")
    parser.add_argument("--file", type=Path, default=file, help="one row a run, Parquet")
    return parser


class Point(NamedTuple):
    """A candidate of the grid."""

    rate: str
    fresh: str  # fresh groups a step
    epochs: str  # of reuse, over a step's batch
    clip: str  # PPO's, of fresh tokens


class Run(NamedTuple):
    """One training; a row of the file is this, its point spread out, and what it brought."""

    task: str
    method: str
    point: Point
    seed: int

    @property
    def is_reported(self) -> bool:
        return self.seed < FIRST_SEARCH_SEED


class Results:
    """The runs that are done, in a file; one process writes it."""

    def __init__(self, file: Path) -> None:
        self.file, self.found = file, dict[Run, dict[str, Any]]()
        for row in run_files.read(file):
            point = Point(*(row.pop(axis) for axis in AXES))
            self.found[Run(row.pop("task"), row.pop("method"), point, row.pop("seed"))] = row

    def add(self, run: Run, found: dict[str, Any]) -> None:
        self.found[run] = found
        named = {"task": run.task, "method": run.method, **dict(zip(AXES, run.point, strict=True)), "seed": run.seed}
        run_files.add(self.file, named | found)

    def mean(self, runs: Iterable[Run]) -> float:
        """Of the first measure."""
        return float(np.mean([self.found[run]["area"] for run in runs]))

    def do(
        self,
        runs: Iterable[Run],
        executor: ProcessPoolExecutor,
        perform: Callable[[Run], dict[str, Any]],
    ) -> None:
        """Those that are missing; an error of one ends the others that have not begun."""
        missing = [run for run in dict.fromkeys(runs) if run not in self.found]
        started, tasks = time.monotonic(), {executor.submit(perform, run): run for run in missing}
        for done, task in enumerate(as_completed(tasks), 1):
            if task.exception():
                executor.shutdown(wait=False, cancel_futures=True)
            self.add(tasks[task], task.result())
            if done % 20 == 0 or done == len(missing):
                left = (time.monotonic() - started) / done * (len(missing) - done) / 60
                print(f"{tasks[task].task}: {done} of {len(missing)} runs, {left:.0f} min left", flush=True)
        run_files.pack(self.file)


def done(
    description: str | None,
    file: Path,
    runs: Iterable[Run],
    perform: Callable[[Run], dict[str, Any]],
    arguments: Sequence[str] | None = None,
) -> Results:
    """The command of a study whose runs are all known before: those that are missing are done."""
    options = parser_of(description, file).parse_args(arguments)
    results = Results(options.file)
    with workers(options.jobs) as executor:
        results.do(runs, executor, perform)
    return results
