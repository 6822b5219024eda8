"""One picture for a paper: the mean of each benchmark with its 95 % interval, a colour for each series."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.estimates import OVERALL, Estimate

FORMATS = (".pdf", ".svg")
SHAPES = "osD^vP"
INCHES_PER_BENCHMARK, INCHES_HIGH = 0.9, 2.6  # of a figure two columns wide at most
# text stays text, and an equal picture is an equal file
SETTINGS: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "exgrpo", "font.size": 8}


def check(path: Path) -> None:
    """ValueError if no picture can be written there."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--picture={path}: must end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ValueError(f"--picture={path}: its folder must exist")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(f"--picture={path}: must have matplotlib installed") from error


def draw(series: Mapping[str, Mapping[str, Estimate]], measure: str, path: Path) -> None:
    """Write it.

    Args:
        series: name -> benchmark -> estimate, all with the same benchmarks; the mean over them is left out where there
            is one benchmark.
        measure: what the vertical axis is.
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
        for place, (name, found) in enumerate(series.items()):
            shift = 0.6 * ((place + 0.5) / len(series) - 0.5)
            values = [found[benchmark].value for benchmark in names]
            # a percentile interval may leave out its value by a rounding error
            below = [max(0.0, found[benchmark].value - found[benchmark].low) for benchmark in names]
            above = [max(0.0, found[benchmark].high - found[benchmark].value) for benchmark in names]
            places = [number + shift for number in range(len(names))]
            bars = axis.errorbar(places, values, yerr=[below, above], label=name, fmt=SHAPES[place % len(SHAPES)])
            bars[0].set_markersize(4)
        labels = ["mean" if name == OVERALL else name for name in names]
        axis.set_xticks(range(len(names)), [label.replace("$", r"\$") for label in labels])
        axis.set_ylabel(measure)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.18), ncols=min(3, len(series)))
        metadata = {"Date": None} if path.suffix == ".svg" else {"CreationDate": None}
        figure.savefig(path, bbox_inches="tight", metadata=metadata)
        plt.close(figure)
