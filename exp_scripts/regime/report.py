"""Tables and picture of the study where success is rare.

    python exp_scripts/regime/report.py [--collect outputs/rare-success] [--output docs/experiments]

--collect takes the runs together in one file, rare-success.json, from which everything else is made. Printed: the
tables in Markdown. Drawn: rare-success.png, the differences.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import study_folders  # noqa: F401
from comparison import estimate, marked
from methods import ROUND_THREE, ROUND_TWO, SHAPING
from rare_tasks import RARE_TASKS
from report_picture import draw_differences
from results import CONFIRMED, REPORTED, area_of, by_method, collect, tasks

HERE = Path(__file__).resolve().parent


def compared(data: Mapping[str, Any], names: Sequence[str]) -> str:
    """Methods with the first of them, on the tasks where all of them have runs."""
    base, to = names[0], f"to {names[0]}"
    lines = [
        f"| task | method | seeds | mean over the run | {to} | Mean@32 held out | {to} | pass@32 held out | {to} |",
        "| --- | --- | ---: | --- | --- | --- | --- | --- | --- |",
    ]
    measures: tuple[Callable[[Mapping[str, Any]], float], ...] = (
        area_of,
        lambda run: float(run["last"]["held_out_pass_1"]),
        lambda run: float(run["last"]["held_out_pass_32"]),
    )
    for task in tasks(data, names):
        runs = by_method(data, task, names)
        for name, each in runs.items():
            cells = []
            for measure in measures:
                mine, theirs = [measure(run) for run in each], [measure(run) for run in runs[base]]
                gap = marked(estimate(np.subtract(mine, theirs).tolist()))
                cells += [str(estimate(mine)), "" if name == base else gap]
            lines.append(f"| {task} | {name} | {len(each)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def confirmation(data: Mapping[str, Any]) -> str:
    """All seeds, and those of the confirmation alone; only tasks whose runs are complete."""
    lines = [
        "| task | on-policy | group replay, to on-policy | of these, the ten new seeds | ExGRPO, to on-policy | group "
        "replay, to ExGRPO | pass@32 held out: group replay, to on-policy |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    every = {*REPORTED, *CONFIRMED}
    for task in tasks(data):
        runs = by_method(data, task, seeds=every)
        if len(runs["on-policy"]) < len(every):
            continue
        areas = {name: np.array([area_of(run) for run in each]) for name, each in runs.items()}
        ends = {name: np.array([run["last"]["held_out_pass_32"] for run in each]) for name, each in runs.items()}
        gap = areas["group replay"] - areas["on-policy"]
        gaps = [
            gap,
            gap[len(REPORTED) :],
            areas["ExGRPO"] - areas["on-policy"],
            areas["group replay"] - areas["ExGRPO"],
            ends["group replay"] - ends["on-policy"],
        ]
        cells = [str(estimate(areas["on-policy"].tolist())), *(marked(estimate(each.tolist())) for each in gaps)]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def over_time(data: Mapping[str, Any]) -> str:
    """Group replay to on-policy training in the mean over the first parts of a run's tokens, all seeds."""
    parts = {"first eighth": 1 / 8, "first quarter": 1 / 4, "first half": 1 / 2, "the run": 1.0}
    lines = [f"| task | {' | '.join(parts)} |", f"| --- |{' --- |' * len(parts)}"]
    for task in tasks(data):
        runs = by_method(data, task, seeds={*REPORTED, *CONFIRMED})
        areas = [
            [[area_of(run, part) for run in runs[name]] for name in ("group replay", "on-policy")]
            for part in parts.values()
        ]
        cells = [marked(estimate(np.subtract(*each).tolist())) for each in areas]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def round_two_table(data: Mapping[str, Any]) -> str:
    """Group replay with one change each, on the seeds of the search; what it is compared with was chosen on them."""
    found = {task: len(_found(data, task, chosen, ROUND_TWO)) for task, chosen in data["chosen"].items()}
    shown = [task for task, runs in found.items() if runs == len(ROUND_TWO) * len(RARE_TASKS[task].search_seeds)]
    lines = [f"| change to group replay | {' | '.join(shown)} |", f"| --- |{' ---: |' * len(shown)}"]
    for name in ("none", *ROUND_TWO):
        areas = (_found(data, task, data["chosen"][task], {name: ROUND_TWO.get(name, {})}) for task in shown)
        lines.append(f"| {name} | {' | '.join(f'{np.mean(each):.3f}'[1:] if each else '' for each in areas)} |")
    return "\n".join([*lines, ""])


def _found(
    data: Mapping[str, Any], task: str, chosen: Mapping[str, Sequence[str]], changes: Mapping[str, Mapping[str, str]]
) -> list[float]:
    settings = dict(setting.split("=", 1) for setting in chosen["group replay"])
    wanted = [sorted(f"{k}={v}" for k, v in {**settings, **change}.items()) for change in changes.values()]
    return [run["area"] for run in data["search"] if run["task"] == task and run["settings"] in wanted]


def main() -> None:
    """Collect if asked to, then print the tables and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "docs" / "experiments")
    arguments = parser.parse_args()
    file = arguments.output / "rare-success.json"
    if arguments.collect:
        file.write_text(json.dumps(collect(arguments.collect), separators=(",", ":")) + "\n")
    data = json.loads(file.read_text())
    print(compared(data, ("ExGRPO", *SHAPING)))
    print(compared(data, ("group replay", *ROUND_THREE)))
    print(compared(data, ("on-policy", *ROUND_THREE)))
    print(confirmation(data))
    print(over_time(data))
    print(round_two_table(data))
    draw_differences(data, arguments.output / "rare-success.png")


if __name__ == "__main__":
    main()
