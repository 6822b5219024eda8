"""The picture of the study with equal grids: what replay gains and what it costs, task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from comparison import Estimate, estimate
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

matplotlib.use("Agg")
COLORS = {
    "past groups for dead, best rate": "tab:blue",
    "past groups beside, best rate": "tab:cyan",
    "ExGRPO": "tab:orange",
}
LEGEND = {"ExGRPO": "ExGRPO, both at 1e-4"}
PANELS = {"over the run": "at equal generated tokens", "by time": "at equal processor time"}


def draw(every: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], path: Path) -> None:
    """A panel a measure: differences to on-policy GRPO with 95 % intervals over seeds; last with tasks as units.

    Args:
        every: task -> method -> measure -> what it is ahead of on-policy GRPO, a value a seed.
    """
    rows = [*every, "all tasks"]
    figure, axes = plt.subplots(1, len(PANELS), figsize=(9, 0.85 * len(rows) + 1.3), sharey=True, layout="constrained")
    for axis, (measure, title) in zip(axes, PANELS.items(), strict=True):
        for offset, (name, color) in zip((-0.28, 0, 0.28), COLORS.items(), strict=True):
            gaps = [list(of_task[name][measure]) for of_task in every.values() if name in of_task]
            units = [float(np.mean(one)) for one in gaps]
            for row, values in enumerate([*gaps, units] if gaps else []):
                draw_estimate(axis, estimate(values), row + offset, color, LEGEND.get(name, name) if row == 0 else "")
        axis.axvline(0, color="0.3", linewidth=1)
        axis.set(yticks=range(len(rows)), yticklabels=rows, xlabel="accuracy over the run, to on-policy GRPO (95 %)")
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.grid(axis="x", alpha=0.25)
        axis.margins(x=0.12)
    axes[0].invert_yaxis()
    figure.suptitle("right of the line replay is better, left of it worse", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_estimate(axis: Axes, of: Estimate, height: float, color: str, label: str) -> None:
    """A dot with its interval and its number."""
    if not np.isnan(of.low):
        axis.plot([of.low, of.high], [height] * 2, color=color, linewidth=2)
    axis.plot(of.mean, height, "o", color=color, markersize=7, label=label or None)
    axis.annotate(f"{of.mean:+.3f}", (of.mean, height), (0, 5), textcoords="offset points", fontsize=8, ha="center")
