"""A picture for a paper: the mean of each benchmark with its 95 % interval, one colour per
series.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exgrpo_eval.estimate.estimates import OVERALL, Estimate
from exgrpo_tools.texts import picture_label

FORMATS = (".pdf", ".svg")
SHAPES = "osD^vP"
INCHES_PER_BENCHMARK, INCHES_HIGH = 0.9, 2.6  # the figure is at most two columns wide
# text stays text, and equal pictures are equal files
SETTINGS: Any = {
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "exgrpo",
    "font.size": 8,
}


def check(path: Path) -> None:
    """ValueError if a picture cannot be written to this path."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--picture={path}: must end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ValueError(f"--picture={path}: its folder must exist")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(f"--picture={path}: must have matplotlib installed") from error


def draw(series: Mapping[str, Mapping[str, Estimate]], measure: str, path: Path) -> None:
    """Draw the series and write the picture.

    Args:
        series: name -> benchmark -> estimate, all with the same benchmarks; their mean is left out
            if there is only one benchmark.
        measure: label of the vertical axis.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(next(iter(series.values())))
    if len(names) == 2 and OVERALL in names:
        names.remove(OVERALL)
    with matplotlib.rc_context(SETTINGS):
        width = min(7.0, 1.4 + INCHES_PER_BENCHMARK * len(names))
        figure, axis = plt.subplots(figsize=(width, INCHES_HIGH))
        for index, (name, by_benchmark) in enumerate(series.items()):
            estimates = [by_benchmark[benchmark] for benchmark in names]
            shift = 0.6 * ((index + 0.5) / len(series) - 0.5)
            positions = [number + shift for number in range(len(names))]
            values = [estimate.value for estimate in estimates]
            # rounding may put a value slightly outside its percentile interval
            below = [max(0.0, estimate.value - estimate.low) for estimate in estimates]
            above = [max(0.0, estimate.high - estimate.value) for estimate in estimates]
            bars = axis.errorbar(
                positions,
                values,
                yerr=[below, above],
                label=picture_label(name),
                fmt=SHAPES[index % len(SHAPES)],
            )
            bars[0].set_markersize(4)
        labels = ["mean" if name == OVERALL else picture_label(name) for name in names]
        axis.set_xticks(range(len(names)), labels)
        axis.set_ylabel(measure)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        axis.legend(
            frameon=False, loc="upper left", bbox_to_anchor=(0, 1.18), ncols=min(3, len(series))
        )
        metadata = {"Date": None} if path.suffix == ".svg" else {"CreationDate": None}
        figure.savefig(path, bbox_inches="tight", metadata=metadata)
        plt.close(figure)
