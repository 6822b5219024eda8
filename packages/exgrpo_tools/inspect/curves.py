"""`--curves`, `--beside OTHER`: what a run has learned and replayed, as a table and a picture; two
runs at equal steps and at equal generated tokens.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exgrpo.saved.durable import replaced
from exgrpo_tools import run_figures, run_files
from exgrpo_tools.inspect.text import print_lines
from exgrpo_tools.run_files import RunMetrics, Steps
from exgrpo_tools.texts import picture_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = "curves.png"
ONE_EACH = "one run of each: whether a difference is more than chance, several seeds of each say"


def show(run: Path, other: Path | None) -> None:
    """Print which files were read, the tables, and where the picture is.

    Raises:
        ValueError, OSError: no metrics are there, or the picture cannot be written.
    """
    found = [_read(each) for each in (run, other) if each is not None]
    names = _names([run] if other is None else [run, other])
    for each in found:
        print_lines([f"curves from {each}"])
    path = (run if run.is_dir() else run.parent) / PICTURE
    if other is None:
        print_lines(table(run_figures.summary(found[0].steps)))
        picture(found[0].steps, path)
    else:
        runs = {name: each.steps for name, each in zip(names, found, strict=True)}
        print_lines(["", *compared(runs)])
        picture_of_two(runs, path)
    print_lines([f"  {'picture':26} {path}"])


def _read(run: Path) -> RunMetrics:
    found = run_files.read(run)
    if not run_figures.trained(found.steps):
        raise ValueError(f"{found.files[-1]}: has no step that has trained")
    return found


def table(figures: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a run's figures."""
    for name, value in figures.items():
        shown = "not tested" if value is None else value
        if name == "generated tokens" and value is None:
            shown = "not logged"
        yield f"  {name:26} {value:.3f}" if isinstance(value, float) else f"  {name:26} {shown}"


def compared(runs: Mapping[str, Steps]) -> Iterator[str]:
    """Two runs side by side: their sizes, then their tests at equal steps and equal tokens."""
    width = max(14, *(len(name) + 2 for name in runs))
    sums = [run_figures.summary(steps) for steps in runs.values()]

    def line(title: str, values: Sequence[object]) -> str:
        cells = (
            "-"
            if value is None
            else f"{value:.3f}"
            if isinstance(value, float)
            else f"{value:,}"
            if isinstance(value, int)
            else value
            for value in values
        )
        return f"  {title:34}" + "".join(f"{cell!s:>{width}}" for cell in cells)

    yield line("", list(runs))
    for name in ("kind", "steps", "generated tokens", "steps that replay"):
        yield line(name, [each[name] for each in sums])
    tested = [tests_of(steps) for steps in runs.values()]
    if not all(tested):
        yield "  no test in one of them (trainer.test_freq)"
        return
    step = min(max(each) for each in tested)
    yield line(f"test accuracy, step {step}", [_at(each, step) for each in tested])
    tokens = [run_figures.tokens_by_step(steps) for steps in runs.values()]
    if all(tokens):
        spent = [
            {count[at]: value for at, value in each.items()}
            for each, count in zip(tested, tokens, strict=True)
        ]
        least = min(max(each) for each in spent)
        yield line(f"test accuracy, {least:,.0f} tokens", [_at(each, least) for each in spent])
    yield f"  between two tests: on the line from one to the other; {ONE_EACH}"


def tests_of(steps: Steps) -> dict[int, float]:
    """Step -> test accuracy, the mean over sources."""
    found = {step: run_figures.test_accuracy(metrics) for step, metrics in steps.items()}
    return {step: value for step, value in found.items() if value is not None}


def _at(curve: Mapping[Any, float], place: float) -> float:
    """The value at a place, on the line between the two around it."""
    return float(np.interp(place, list(curve), list(curve.values())))


# -- pictures --------------------------------------------------------------------------------------


def picture(steps: Steps, path: Path) -> None:
    """Accuracy, and of a run with replay the pool and what is replayed, over the steps."""
    plt = _pyplot()
    taught = run_figures.trained(steps)
    replays = any(run_figures.replayed_groups(metrics) for metrics in taught.values())
    pool = any("experience/pool_questions" in metrics for metrics in taught.values())
    count = 1 + pool + replays
    figure, panels = plt.subplots(
        1,
        count,
        figsize=(13 if count == 3 else 6.5 * count, 3.8),
        layout="constrained",
        squeeze=False,
    )
    left, *others = panels[0]
    _draw_accuracy(left, steps, taught)
    if pool:
        _draw_questions(others[0], taught)
    if replays:
        _draw_replay(others[-1], taught)
    _save(figure, path, panels[0])


def _draw_accuracy(axes: Axes, steps: Steps, taught: Steps) -> None:
    fresh = [run_figures.fresh_accuracy(metrics) for metrics in taught.values()]
    axes.plot(list(taught), _gaps(fresh), color="C7", lw=1, label="training, fresh rollouts")
    sources = sorted({name for metrics in steps.values() for name in run_figures.tests(metrics)})
    for number, source in enumerate(sources):
        found = {step: run_figures.tests(metrics).get(source) for step, metrics in steps.items()}
        found = {step: value for step, value in found.items() if value is not None}
        label = "test questions, sampled" if len(sources) == 1 else f"test: {picture_label(source)}"
        axes.plot(list(found), list(found.values()), "o-", color=f"C{number % 7}", label=label)
    axes.set(title="Accuracy", xlabel="step")
    _from_zero_to_one(axes)
    axes.legend(loc="lower right", fontsize=9 if len(sources) < 4 else 7)


def _draw_questions(axes: Axes, taught: Steps) -> None:
    for key, name in (
        ("pool_questions", "in the pool"),
        ("retired_questions", "retired: solved by every rollout"),
    ):
        values = [metrics.get(f"experience/{key}", 0) for metrics in taught.values()]
        axes.plot(list(taught), values, label=name)
    axes.set(title="Questions", xlabel="step")
    axes.legend(loc="upper left")


def _draw_replay(axes: Axes, taught: Steps) -> None:
    groups = [run_figures.replayed_groups(metrics) for metrics in taught.values()]
    axes.bar(list(taught), groups, color="C2", alpha=0.5)
    axes.set(
        title="Replayed groups (bars), age of what is replayed (line)",
        xlabel="step",
        ylabel="groups",
    )
    ages = axes.twinx()
    replayed = {step: each for step, each in taught.items() if run_figures.replayed_groups(each)}
    ages.plot(
        list(replayed), [run_figures.replay_age(each) for each in replayed.values()], color="C3"
    )
    ages.set_ylim(bottom=0)
    ages.set_ylabel("mean age, steps", color="C3")


def picture_of_two(runs: Mapping[str, Steps], path: Path) -> None:
    """Test accuracy (dots) and that of fresh rollouts (thin) by steps and by generated tokens."""
    plt = _pyplot()
    tokens = {name: run_figures.tokens_by_step(steps) for name, steps in runs.items()}
    count = 2 if all(tokens.values()) else 1
    figure, panels = plt.subplots(
        1, count, figsize=(5.5 * count, 3.8), layout="constrained", squeeze=False, sharey=True
    )
    for number, (name, steps) in enumerate(runs.items()):
        taught, tested = run_figures.trained(steps), tests_of(steps)
        fresh = _gaps([run_figures.fresh_accuracy(metrics) for metrics in taught.values()])
        by_step = {step: float(step) for step in steps}
        for axes, place in zip(panels[0], (by_step, tokens[name]), strict=False):
            color = f"C{number}"
            axes.plot([place[step] for step in taught], fresh, color=color, lw=0.8, alpha=0.4)
            axes.plot(
                [place[step] for step in tested],
                list(tested.values()),
                "os"[number] + "-",
                color=color,
                label=picture_label(name),
            )
    for axes, title in zip(panels[0], ("step", "generated tokens"), strict=False):
        axes.set(xlabel=title)
    panels[0][0].set(ylabel="accuracy: test (dots), training (thin)")
    _from_zero_to_one(panels[0][0])
    panels[0][0].legend(loc="lower right")
    _save(figure, path, panels[0])


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path, panels: Sequence[Axes]) -> None:
    for axes in panels:
        axes.spines[["top"]].set_visible(False)
    with replaced(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
    _pyplot().close(figure)


def _from_zero_to_one(axes: Axes) -> None:
    """The whole range of an accuracy; rewards beyond it have their own."""
    low, high = axes.get_ylim()
    if low >= -0.06 and high <= 1.06:
        axes.set_ylim(0, 1)


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


def _names(runs: Sequence[Path]) -> list[str]:
    """Short names for runs: what of their paths is not common to all."""
    whole = [str(run.absolute()) for run in runs]
    if len(runs) == 1 or len(set(whole)) == 1:
        return [f"{name}{number or ''}" for number, name in enumerate(map(os.path.basename, whole))]
    common = os.path.commonpath(whole)
    return [os.path.relpath(each, common) for each in whole]


def spread(values: Sequence[float]) -> str:
    """The mean, and the range if there are several values."""
    text = f"{statistics.mean(values):.3f}"
    return text if len(values) == 1 else f"{text} ({min(values):.3f} to {max(values):.3f})"
