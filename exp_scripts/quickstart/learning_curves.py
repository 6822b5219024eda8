"""Table and picture of quickstart runs.

    python exp_scripts/quickstart/learning_curves.py DIR [DIR ...]

For each run a table of learning and replay, and DIR/quickstart.png; for several also mean and range
by kind of run. ``exgrpo-inspect RUN --curves`` does so for any run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from exgrpo.console import in_one_line, printable
from exgrpo_tools import run_figures, run_files
from exgrpo_tools.inspect.curves import picture, spread, table
from exgrpo_tools.run_figures import (
    KINDS,
    ON_POLICY,
    fresh_accuracy,
    replayed_groups,
    tests,
)


def progress(entry: dict[str, Any], steps: int) -> str:
    """One line about a step."""
    metrics, step = entry["data"], entry["step"]
    words = [f"test accuracy {tested}"] if (tested := test_words(metrics)) else []
    if "timing_s/step" in metrics:
        seconds = metrics["timing_s/step"]
        groups = replayed_groups(metrics)
        pool = metrics.get("experience/pool_questions", 0)
        retired = metrics.get("experience/retired_questions", 0)
        left = (steps - step) * seconds
        words = [
            f"train accuracy {fresh_accuracy(metrics):.3f}",
            f"replayed {groups:.0f}",
            f"pool {pool:.0f} questions",
            f"retired {retired:.0f}",
            f"{seconds:.1f} s a step, {left / 60:.1f} min left",
            *words,
        ]
    return f"step {step:3d}/{steps}  " + "  ".join(words)


def test_words(metrics: dict[str, Any]) -> str:
    """The accuracy on the test questions; where several sources have some, of each by its name."""
    found = tests(metrics)
    names = [f"{printable(name)} " if len(found) > 1 else "" for name in found]
    return ", ".join(
        f"{name}{value:.3f}" for name, value in zip(names, found.values(), strict=True)
    )


def summary(folder: Path) -> dict[str, Any]:
    """A run's figures, name -> value."""
    return {"run": folder.name, **run_figures.summary(run_files.read(folder).steps)}


def show(folders: list[Path]) -> None:
    """Print the table of each run, draw its picture, and compare the kinds of several runs."""
    summaries = []
    for folder in folders:
        figures = summary(folder)
        summaries.append(figures)
        (folder / "summary.json").write_text(json.dumps(figures, indent=1))
        picture(run_files.read(folder).steps, folder / "quickstart.png")
        print(f"\n{folder}")
        print(
            "\n".join(
                [*table(figures), f"  picture                    {folder / 'quickstart.png'}"]
            )
        )
    if len(folders) > 1:
        print("\n| | runs | before | after | generated tokens |\n| --- | --- | --- | --- | --- |")
        for kind in (*KINDS.values(), ON_POLICY):
            runs = [
                run
                for run in summaries
                if run["kind"] == kind and run["accuracy after"] is not None
            ]
            if runs:
                before = spread([run["accuracy before"] for run in runs])
                after = spread([run["accuracy after"] for run in runs])
                tokens = sum(run["generated tokens"] for run in runs) / len(runs)
                print(f"| {kind} | {len(runs)} | {before} | {after} | {tokens:,.0f} |")


if __name__ == "__main__":
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("folders", metavar="DIR", nargs="+", type=Path, help="folder of a run")
    with in_one_line("learning_curves.py"):
        show(cli.parse_args().folders)
