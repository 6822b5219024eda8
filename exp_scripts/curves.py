"""Pictures of training curves: test accuracy by steps and by generated tokens, means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Sequence[Mapping[str, Any]]


def tests(curve: Curve) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, generated tokens and test accuracy where there was a test."""
    rows = [row for row in curve if "test" in row]
    columns = ("step", "generated", "test")
    return tuple(np.array([row[name] for row in rows], dtype=float) for name in columns)


def draw(curves: Mapping[str, Sequence[Curve]], title: str, path: Path) -> None:
    """Test accuracy by steps and by tokens, a band of one standard error around each mean.

    Args:
        curves: setting -> one curve a seed, the seeds in the same order.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for number, (name, each) in enumerate(curves.items()):
        steps = tests(each[0])[0]
        tokens = np.linspace(0, min(curve[-1]["generated"] for curve in each), len(steps))
        by_step = np.stack([tests(curve)[2] for curve in each])
        by_token = np.stack([np.interp(tokens, *tests(curve)[1:]) for curve in each])
        for axis, x, values in ((axes[0], steps, by_step), (axes[1], tokens, by_token)):
            draw_mean(axis, x, values, name, f"C{number}", 2 if number == 0 else 1.3)
    axes[0].set(xlabel="step", ylabel="test accuracy", title=title)
    axes[1].set(xlabel="generated tokens")
    axes[0].legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def draw_mean(
    axis: Axes,
    x: Sequence[float] | np.ndarray,
    values: np.ndarray,
    label: str,
    color: str,
    width: float = 1.5,
) -> None:
    """The mean of the rows, each a seed's values, with a band of one standard error."""
    mean = values.mean(0)
    error = values.std(0, ddof=min(1, len(values) - 1)) / np.sqrt(len(values))
    axis.plot(x, mean, label=label, color=color, linewidth=width)
    axis.fill_between(x, mean - error, mean + error, color=color, alpha=0.15, linewidth=0)
