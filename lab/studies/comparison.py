"""A study's table and picture: means over seeds, 95 % intervals, differences to the baseline paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import study_folders  # noqa: F401
from curves import Curve, draw, tests

# .975 quantiles of Student's t for 1 to 20 degrees of freedom; scipy is not among the pinned packages
_T: tuple[float, ...] = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_T += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)

MEASURES = {
    "end": "accuracy at the end (mean of the last third's tests)",
    "mean": "mean accuracy over the run",
    "equal": "accuracy at equal generated tokens",
}


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % interval by Student's t; without one where there is one seed."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        interval = "" if np.isnan(self.low) else f" ({_number(self.low)} to {_number(self.high)})"
        return _number(self.mean) + interval


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values, one a seed."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, float("nan"), float("nan"))
    half = _T[min(len(values) - 1, len(_T)) - 1] * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Estimate(mean, mean - half, mean + half)


def measures(curve: Curve, tokens: float) -> dict[str, float]:
    """The measures of one run; ``equal`` by interpolation at so many generated tokens."""
    steps, generated, accuracy = tests(curve)
    return {
        "end": float(accuracy[steps > steps[-1] * 2 / 3].mean()),
        "mean": float(np.trapezoid(accuracy, steps) / steps[-1]),
        "equal": float(np.interp(tokens, generated, accuracy)),
    }


def compare(study: str, task: str, curves: Mapping[str, Sequence[Curve]], folder: Path) -> str:
    """The table in Markdown; also written beside a picture to ``folder``.

    Args:
        curves: setting -> one curve a seed, the seeds in the same order; the first setting is the baseline.
    """
    tokens = [min(named[seed][-1]["generated"] for named in curves.values()) for seed in range(_seeds(curves))]
    found = {
        name: {
            key: [measures(curve, limit)[key] for curve, limit in zip(each, tokens, strict=True)] for key in MEASURES
        }
        for name, each in curves.items()
    }
    baseline = next(iter(curves))
    lines = [
        f"### {study}, task {task}, {_seeds(curves)} seeds",
        "",
        "| setting | end | difference | mean over the run | difference | at equal tokens | difference | tokens |",
        "| --- | --- | --- | --- | --- | --- | --- | ---: |",
    ]
    for name, each in curves.items():
        cells = []
        for key in MEASURES:
            cells.append(str(estimate(found[name][key])))
            gaps = np.subtract(found[name][key], found[baseline][key])
            cells.append("" if name == baseline else marked(estimate(gaps)))
        generated = np.mean([curve[-1]["generated"] for curve in each])
        lines.append(f"| {name} | {' | '.join(cells)} | {generated:,.0f} |")
    first = next(iter(curves.values()))
    before = estimate([float(tests(curve)[2][0]) for curve in first])
    lines += ["", f"Before training: {before}. Bold: the interval of the paired difference excludes zero.", ""]
    text = "\n".join(lines)
    stem = f"{study.replace(' ', '-')}-{task}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.md").write_text(text)
    draw(curves, f"{study}, task {task}", folder / f"{stem}.png")
    return text


def _seeds(curves: Mapping[str, Sequence[Curve]]) -> int:
    return len(next(iter(curves.values())))


def _number(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def marked(gap: Estimate) -> str:
    """In bold if the interval excludes zero."""
    return f"**{gap}**" if gap.low > 0 or gap.high < 0 else str(gap)
