"""Table and picture of the study of many questions (many_questions.py), over the seeds that every method has.

python exp_scripts/regime/many_questions_report.py [--file FILE] [--picture PICTURE]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import study_folders  # noqa: F401
from comparison import estimate
from equal_grids import Results
from many_questions import FILE, MASKED, METHODS, TASK
from matplotlib import pyplot as plt
from seed_tables import Runs, reported, table

from exgrpo.accidents import in_one_line

matplotlib.use("Agg")
COLORS = dict(zip(METHODS, ("0.4", "tab:orange", "tab:green", "tab:purple"), strict=True))


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
    parser.add_argument("--picture", type=Path, help="default: none")
    options = parser.parse_args(arguments)
    results = Results(options.file)
    seconds = sum(row["seconds"] for row in results.found.values())
    print(f"{len(results.found)} runs, {seconds / 3600:.1f} processor hours")
    for methods in (METHODS, ["on-policy", *MASKED]):
        if runs := reported(results, TASK.name, methods):
            print(f"\n{len(next(iter(runs.values())))} seeds\n\n{table(runs)}")
    if options.picture and (runs := reported(results, TASK.name, METHODS)):
        draw(runs, options.picture)


if __name__ == "__main__":
    with in_one_line("many_questions_report.py"):
        main()
