"""Table and picture of the study of many questions (many_questions.py), over the seeds that every method has.

python exp_scripts/regime/many_questions_report.py [--file FILE] [--picture PICTURE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import study_folders  # noqa: F401
from comparison import estimate
from equal_grids import Results
from many_questions import FILE, MASKED, METHODS, TASK
from matplotlib import pyplot as plt

from exgrpo.accidents import in_one_line

matplotlib.use("Agg")
COLORS = dict(zip(METHODS, ("0.4", "tab:orange", "tab:green", "tab:purple"), strict=True))
Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # method -> its reported runs, in order of the seeds


def reported(results: Results, methods: Iterable[str]) -> tuple[Runs, dict[str, str]]:
    """The runs of the seeds that each of the methods has, and its rate."""
    methods = list(methods)
    found = {run: row for run, row in results.found.items() if run.is_reported}
    seeds = set.intersection(*({run.seed for run in found if run.method == name} for name in methods))
    if not seeds:
        raise SystemExit(f"no seed has been reported yet for all of {', '.join(methods)}")
    of = {(run.method, run.seed): (run.point.rate, row) for run, row in found.items()}
    runs = {name: [of[name, seed][1] for seed in sorted(seeds)] for name in methods}
    return runs, {name: of[name, min(seeds)][0] for name in methods}


def measures(run: Mapping[str, Any]) -> dict[str, float]:
    last = run["last"]
    return {
        "over the run": run["area"],
        "at the end": run["curve"][-1]["test"],
        "Mean@32": last["held_out_pass_1"],
        "pass@32": last["held_out_pass_32"],
        "entropy": last["entropy"],
    }


def table(runs: Runs, rates: Mapping[str, str]) -> str:
    """Markdown: each measure, and below it the difference to the first method, paired by seed."""
    columns = list(measures(next(iter(runs.values()))[0]))
    found = {name: {key: [measures(run)[key] for run in each] for key in columns} for name, each in runs.items()}
    first = found[next(iter(found))]
    lines = [f"| method | rate | {' | '.join(columns)} |", "| --- | --- |" + " --- |" * len(columns)]
    for name, mine in found.items():
        cells = [str(estimate(mine[key])) for key in columns]
        lines.append(f"| {name} | {rates[name]} | {' | '.join(cells)} |")
    for name, mine in found.items():
        if mine is not first:
            cells = [str(estimate(np.subtract(mine[key], first[key]).tolist())) for key in columns]
            lines.append(f"| {name}, to {next(iter(found))} | | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(runs: Runs, path: Path) -> None:
    """Held-out accuracy by generated tokens; bands are 95 % intervals over seeds."""
    tokens = np.linspace(0, TASK.budget, 61)
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, each in runs.items():
        curves = [
            np.interp(tokens, [row["generated"] for row in run["curve"]], [row["test"] for row in run["curve"]])
            for run in each
        ]
        middle = [estimate(values) for values in np.transpose(curves).tolist()]
        axis.plot(tokens / 1000, [one.mean for one in middle], color=COLORS[name], label=name)
        low, high = [one.low for one in middle], [one.high for one in middle]
        axis.fill_between(tokens / 1000, low, high, color=COLORS[name], alpha=0.15, linewidth=0)
    axis.set(xlabel="generated tokens, thousands", ylabel="accuracy, held-out questions")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--picture", type=Path, default=FILE.with_suffix(".png"))
    options = parser.parse_args(arguments)
    results = Results(options.file)
    runs, rates = reported(results, METHODS)
    seconds = sum(row["seconds"] for row in results.found.values())
    print(f"{len(next(iter(runs.values())))} seeds; {len(results.found)} runs, {seconds / 3600:.1f} processor hours\n")
    print(table(runs, rates))
    draw(runs, options.picture)
    if any(run.method in MASKED for run in results.found):
        masked = reported(results, ["on-policy", *MASKED])
        print(f"\n{len(masked[0]['on-policy'])} seeds\n\n{table(*masked)}")


if __name__ == "__main__":
    with in_one_line("many_questions_report.py"):
        main()
