"""The report's plots as SVG, drawn with the page's own colours (CSS classes of report.html.jinja)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

ESTIMATES = ("mean", "majority", "best")
LABELS = {"mean": "Mean@n", "majority": "majority@n", "best": "Best@n"}
WIDTH, LEFT, RIGHT, TOP = 760, 170, 24, 34
LINE = 46  # height of a benchmark
CURVES = 240  # height of the pass@k plot


def intervals(benchmarks: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Dots with their intervals, a line a benchmark; nothing here comes from a model but benchmark names, escaped."""
    height = TOP + LINE * len(benchmarks) + 26
    parts = [_open(height, "Mean@n, majority@n and Best@n of each benchmark with intervals"), _legend()]
    for tick in range(6):
        x = _x(tick / 5)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 26}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick / 5:.1f}</text>')
    for line, (name, own) in enumerate(benchmarks):
        middle = TOP + LINE * line + LINE / 2
        parts.append(f'<text x="{LEFT - 12}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        for place, metric in enumerate(ESTIMATES):
            found, y = own["estimates"][metric], middle + 11 * (place - 1)
            title = f"{LABELS[metric]} {found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"
            low, high = _x(found["low"]), _x(found["high"])
            parts.append(
                f'<g class="s{place}"><title>{escape(name)}: {title}</title>'
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<circle cx="{_x(found["value"]):.1f}" cy="{y:.1f}" r="4"/></g>'
            )
    return "".join([*parts, "</svg>"])


def pass_at_k(benchmarks: Sequence[tuple[str, Mapping[str, Any]]]) -> str | None:
    """A curve a benchmark over k = 1, 2, 4, ..., named beside it; None where all have one sample."""
    curves = {name: _curve(own["estimates"]) for name, own in benchmarks if own["samples"] > 1}
    if not curves:
        return None
    longest = max(len(curve) for curve in curves.values())
    bottom = TOP + CURVES
    step = (WIDTH - 60 - LEFT) / max(longest - 1, 1)
    parts = [_open(bottom + 26, "pass@k over k of each benchmark")]
    for tick in range(6):
        y = bottom - CURVES * tick / 5
        parts.append(f'<line class="grid" x1="60" x2="{60 + step * (longest - 1):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="50" y="{y + 4:.1f}" text-anchor="end">{tick / 5:.1f}</text>')
    for place in range(longest):
        label = f'x="{60 + step * place:.1f}" y="{bottom + 18}" text-anchor="middle">k = {1 << place}</text>'
        parts.append(f'<text class="tick" {label}')
    names = _apart({name: bottom - CURVES * curve[-1] for name, curve in curves.items()}, 14)
    for number, (name, curve) in enumerate(curves.items()):
        points = [(60 + step * place, bottom - CURVES * value) for place, value in enumerate(curve)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        label = f'<text x="{70 + step * (longest - 1):.1f}" y="{names[name] + 4:.1f}">{escape(name)}</text>'
        parts.append(f'<g class="s{number % 6} curve"><polyline points="{path}"/>{label}</g>')
    return "".join([*parts, "</svg>"])


def _curve(estimates: Mapping[str, Mapping[str, float]]) -> list[float]:
    return [found["value"] for metric, found in estimates.items() if metric.startswith("pass@")]


def _apart(places: Mapping[str, float], gap: float) -> dict[str, float]:
    """The places from top to bottom, moved down where one is nearer to the one above than the gap."""
    moved: dict[str, float] = {}
    last = float("-inf")
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        last = moved[name] = max(place, last + gap)
    return moved


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _open(height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{title}">'


def _legend() -> str:
    marks = [
        f'<g class="s{place}"><circle cx="{LEFT + 140 * place + 6}" cy="14" r="4"/></g>'
        f'<text x="{LEFT + 140 * place + 16}" y="18">{LABELS[metric]}</text>'
        for place, metric in enumerate(ESTIMATES)
    ]
    return "".join(marks)
