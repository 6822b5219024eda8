"""Tables of studies whose runs are rows of a file: means over seeds, differences paired by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from comparison import estimate
from study_runs import Results

Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # method -> its reported runs, in order of the seeds


def reported(results: Results, task: str, methods: Iterable[str]) -> Runs:
    """The runs of the seeds that each of the methods has on a task; none if there is no such seed."""
    of = {(run.method, run.seed): row for run, row in results.found.items() if run.task == task and run.is_reported}
    methods = list(methods)
    seeds = set.intersection(*({seed for name, seed in of if name == method} for method in methods))
    return {name: [of[name, seed] for seed in sorted(seeds)] for name in methods} if seeds else {}


def measures(run: Mapping[str, Any]) -> dict[str, float]:
    """Of one reported run; accuracy but for the entropy, in nats."""
    last = run["last"]
    return {
        "over the run": run["area"],
        "at the end": run["curve"][-1]["test"],
        "Mean@32": last["held_out_pass_1"],
        "pass@32": last["held_out_pass_32"],
        "trained less held-out": last["trained_pass_1"] - last["held_out_pass_1"],
        "entropy": last["entropy"],
    }


def differences(runs: Runs, name: str) -> dict[str, list[float]]:
    """Each measure of a method less the first method's, a value a seed."""
    first, mine = next(iter(runs.values())), runs[name]
    pairs = [(measures(run), measures(other)) for run, other in zip(mine, first, strict=True)]
    return {key: [run[key] - other[key] for run, other in pairs] for key in pairs[0][0]}


def table(runs: Runs) -> str:
    """Markdown: a row of each method's means, then rows of what each is ahead of the first, bold beyond zero."""
    first = next(iter(runs))
    columns = list(measures(runs[first][0]))
    lines = [f"| method | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for name, each in runs.items():
        cells = [str(estimate([measures(run)[key] for run in each])) for key in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name in list(runs)[1:]:
        lines.append(f"| {name}, to {first} | {' | '.join(map(marked, differences(runs, name).values()))} |")
    return "\n".join(lines)


def marked(values: Sequence[float]) -> str:
    """An estimate, bold if its interval excludes zero."""
    found = estimate(np.asarray(values).tolist())
    return f"**{found}**" if found.low > 0 or found.high < 0 else str(found)
