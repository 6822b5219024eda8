"""The picture of the study where success is rare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from comparison import estimate
from matplotlib import pyplot as plt
from results import CONFIRMED, REPORTED, area_of, by_method, tasks

matplotlib.use("Agg")
COLORS = {"on-policy": "0.45", "ExGRPO": "tab:orange", "group replay": "tab:blue"}


def draw_differences(data: Mapping[str, Any], path: Path) -> None:
    """What each kind of replay gains over on-policy training on each task, all seeds, with 95 % intervals."""
    shown = tasks(data)
    figure, axis = plt.subplots(figsize=(7.5, 0.75 * len(shown) + 1.2))
    for row, task in enumerate(shown):
        runs = by_method(data, task, seeds={*REPORTED, *CONFIRMED})
        base = [area_of(run) for run in runs["on-policy"]]
        for offset, name, above in ((-0.14, "group replay", 6), (0.14, "ExGRPO", -13)):
            gap = estimate(np.subtract([area_of(run) for run in runs[name]], base).tolist())
            label = name if row == 0 else None
            axis.plot([gap.low, gap.high], [row + offset] * 2, color=COLORS[name], linewidth=2)
            axis.plot(gap.mean, row + offset, "o", color=COLORS[name], markersize=8, label=label)
            axis.annotate(
                f"{gap.mean:+.3f}",
                (gap.mean, row + offset),
                (0, above),
                textcoords="offset points",
                fontsize=8,
                ha="center",
            )
    axis.axvline(0, color="0.3", linewidth=1)
    axis.set(yticks=range(len(shown)), yticklabels=shown, xlabel="accuracy over the run, difference to on-policy GRPO")
    axis.invert_yaxis()
    axis.set_title("at equal generated tokens: left of the line worse, right of it better", fontsize=10)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    axis.margins(x=0.12)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
