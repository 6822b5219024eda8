"""The picture of weak_base.py, the paper's figure 4: accuracy, entropy and length of each method, task by task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from curves import draw_mean
from matplotlib import pyplot as plt
from seed_tables import Runs

matplotlib.use("Agg")
PANELS = {"test": "accuracy, held out", "entropy": "entropy, nats a token", "length": "tokens a response"}
COLORS = ("0.45", "tab:orange", "tab:blue")


def draw(every: Mapping[str, Runs], path: Path) -> None:
    """Means over seeds by step, bands of one standard error; a row a task."""
    figure = plt.figure(figsize=(9, 2.3 * len(every)))
    for row, (task, runs) in enumerate(every.items()):
        for column, (measure, title) in enumerate(PANELS.items()):
            axis = figure.add_subplot(len(every), len(PANELS), row * len(PANELS) + column + 1)
            for color, (name, each) in zip(COLORS, runs.items(), strict=True):
                points = [[point for point in run["curve"] if measure in point] for run in each]
                steps = [point["step"] for point in points[0]]
                values = np.array([[point[measure] for point in run] for run in points])
                draw_mean(axis, steps, values, name, color)
            axis.set_title(f"{task}: {title}", fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_ylim(bottom=0)
            axis.set_xlabel("step" if row == len(every) - 1 else "")
    figure.legend(*axis.get_legend_handles_labels(), frameon=False, loc="upper center", ncols=len(COLORS))
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(path, dpi=120)
    plt.close(figure)
