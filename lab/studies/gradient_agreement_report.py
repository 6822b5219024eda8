"""Tables and picture of gradient_agreement.py.

python lab/studies/gradient_agreement_report.py [--file FILE] [--picture FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import run_files
import study_folders
from comparison import estimate
from gradient_agreement import COMPOSITIONS, FILE
from matplotlib import pyplot as plt
from seed_tables import marked

from exgrpo.console import in_one_line

matplotlib.use("Agg")
FIRST = "on-policy"
PLAIN = (FIRST, "twice the batch")  # nothing old is in them
Measured = Sequence[Mapping[str, Any]]


def cosines(rows: Measured, step: int, name: str) -> dict[str, list[float]]:
    """Of a composition and of the on-policy step, a value a run; empty where it was not measured."""
    both = [row["cosine"] for row in rows if row["step"] == step and name in row["cosine"]]
    return {"mine": [one[name] for one in both], "gap": [one[name] - one[FIRST] for one in both]}


def table(rows: Measured) -> str:
    """Markdown: of each composition the mean cosine, and what it is more than that of the on-policy step."""
    steps = sorted({row["step"] for row in rows})
    titles = [f"after {step} steps | to {FIRST}" for step in steps]
    lines = [f"| a step of | {' | '.join(titles)} |", "| --- |" + " --- | --- |" * len(steps)]
    for name in COMPOSITIONS:
        cells = []
        for step in steps:
            found = cosines(rows, step, name)
            gap = marked(found["gap"]) if found["gap"] and name != FIRST else ""
            cells += [str(estimate(found["mine"])) if found["mine"] else "", gap]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows: Measured, path: Path) -> None:
    """A panel for each step of the run: the cosine of each composition, with 95 % intervals over runs."""
    steps = sorted({row["step"] for row in rows})
    figure, axes = plt.subplots(1, len(steps), figsize=(9, 3.6), sharex=True, sharey=True, layout="constrained")
    for axis, step in zip(axes, steps, strict=True):
        for place, name in enumerate(COMPOSITIONS):
            if found := cosines(rows, step, name)["mine"]:
                mean, low, high = estimate(found)
                color = "tab:blue" if name.startswith("groups") else "0.6" if name in PLAIN else "tab:orange"
                axis.barh(place, mean, color=color, height=0.7)
                axis.plot([low, high], [place, place], color="0.2")
        axis.set(yticks=range(len(COMPOSITIONS)), yticklabels=COMPOSITIONS, xlabel="cosine with the true gradient")
        axis.set_title(f"after {step} steps", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--picture", type=Path, default=study_folders.PICTURES / "gradient-agreement.png")
    options = parser.parse_args(arguments)
    rows = run_files.read(options.file)
    for asked in ("training", "held-out"):
        mine = [row for row in rows if row["reference"] == asked]
        print(f"\nTo the gradient of {asked} questions; its halves agree {estimate([r['halves'] for r in mine])}\n")
        print(table(mine))
    of_runs: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if "ExGRPO" in row["cosine"]:
            effect = row["cosine"]["ExGRPO"] - row["cosine"]["phantom"]
            of_runs.setdefault((row["task"], row["seed"]), []).append(effect)
    effects = [float(np.mean(each)) for each in of_runs.values()]
    print(f"\nwhat the stored row's gradient adds, ExGRPO less phantom, a value a run: {estimate(effects)}")
    draw([row for row in rows if row["reference"] == "training"], options.picture)


if __name__ == "__main__":
    with in_one_line("gradient_agreement_report.py"):
        main()
