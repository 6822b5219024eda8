"""Tables and pictures of the study where success is rare.

    python exp_scripts/regime/report.py [--collect outputs/rare-success] [--output docs/experiments]

--collect takes the runs together in one file, rare-success.json, from which everything else is made. Printed: the
tables in Markdown. Drawn: rare-success.png, the differences, and rare-success-curves.png.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "ablation")]

from comparison import Estimate, estimate, marked  # noqa: E402
from methods import METHODS, SHAPING  # noqa: E402
from rare_tasks import RARE_TASKS  # noqa: E402
from runs import area  # noqa: E402

Rows = Sequence[Mapping[str, Any]]
COLORS = {"on-policy": "0.45", "ExGRPO": "tab:orange", "group replay": "tab:blue"}
RESAMPLES = 10_000
_CURVE = ("generated", "test", "trained", "test_short", "test_long")


def collect(folder: Path) -> dict[str, Any]:
    """The runs of a study: settings that won, the search, the reported runs."""
    chosen = {path.stem.removeprefix("chosen-"): json.loads(path.read_text()) for path in folder.glob("chosen-*.json")}
    reported, searched = [], []
    for path in sorted(folder.glob("reported/*/*.json")):
        run = json.loads(path.read_text())
        named = [name for name, settings in _named(chosen[run["task"]]).items() if settings == run["settings"]]
        reported += [_compact(run) | {"method": name} for name in named]
    for path in sorted(folder.glob("search/*/*.json")):
        run = json.loads(path.read_text())
        task = RARE_TASKS[run["task"]]
        score = area(run["curve"], task.budget, task.measure)
        searched.append({name: run[name] for name in ("task", "settings", "seed")} | {"area": round(score, 4)})
    return {"chosen": {name: chosen[name] for name in RARE_TASKS if name in chosen}} | {
        "reported": reported,
        "search": searched,
    }


def _named(chosen: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Method -> its settings in a run's order; those of the study of shaping too."""
    published = dict(setting.split("=", 1) for setting in chosen["ExGRPO"])
    others = {name: [f"{k}={v}" for k, v in {**published, **own}.items()] for name, own in SHAPING.items()}
    return {name: sorted(settings) for name, settings in {**chosen, **others}.items()}


def _compact(run: Mapping[str, Any]) -> dict[str, Any]:
    tests = [row for row in run["curve"] if "test" in row]
    curve = {name: [round(row[name], 4) for row in tests] for name in _CURVE if name in tests[0]}
    kept = {name: run[name] for name in ("task", "seed", "visits", "processor_seconds", "seconds")}
    last = {name: round(value, 4) for name, value in run["last"].items()}
    return kept | {"steps": run["curve"][-1]["step"], "last": last, "curve": curve}


def area_of(run: Mapping[str, Any]) -> float:
    """The first measure of a reported run."""
    task, curve = RARE_TASKS[run["task"]], run["curve"]
    rows = [dict(zip(curve, values, strict=True)) for values in zip(*curve.values(), strict=True)]
    return area(rows, task.budget, task.measure)


def by_method(data: Mapping[str, Any], task: str, names: Sequence[str] = tuple(METHODS)) -> dict[str, Rows]:
    """Method -> its runs with the seeds that all methods have, in the order of the seeds."""
    mine = [run for run in data["reported"] if run["task"] == task]
    methods = {name: {run["seed"]: run for run in mine if run["method"] == name} for name in names}
    common = sorted(set.intersection(*(set(runs) for runs in methods.values())))
    return {name: [runs[seed] for seed in common] for name, runs in methods.items()}


def tasks(data: Mapping[str, Any], names: Sequence[str] = tuple(METHODS)) -> list[str]:
    """Those that all methods have run with two seeds or more."""
    return [task for task in data["chosen"] if len(by_method(data, task, names)[names[0]]) > 1]


def interquartile(values: Sequence[float]) -> Estimate:
    """Mean of the middle half, with a 95 % bootstrap interval over runs."""
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.choice(np.asarray(values), (RESAMPLES, len(values))), axis=1)
    cut = len(values) // 4
    means = drawn[:, cut : len(values) - cut].mean(1)
    middle = np.sort(values)[cut : len(values) - cut].mean()
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(middle), float(low), float(high))


def tables(data: Mapping[str, Any]) -> str:
    """First measure, end, and costs of all tasks."""
    first = [
        "| task | method | seeds | mean over the run | to on-policy | to ExGRPO | interquartile mean |",
        "| --- | --- | ---: | --- | --- | --- | --- |",
    ]
    last = [
        "| task | method | Mean@32 held out | to on-policy | pass@32 held out | to on-policy | Mean@32 trained | to "
        "on-policy | entropy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | ---: |",
    ]
    costs = [
        "| task | method | settings that won | updates | visits a question | processor time, on-policy = 1 |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for task in tasks(data):
        runs = by_method(data, task)
        areas = {name: [area_of(run) for run in each] for name, each in runs.items()}
        for name, each in runs.items():
            gaps = [
                "" if other == name else marked(estimate(np.subtract(areas[name], areas[other]).tolist()))
                for other in ("on-policy", "ExGRPO")
            ]
            cells = (str(estimate(areas[name])), *gaps, str(interquartile(areas[name])))
            first.append(f"| {task} | {name} | {len(each)} | {' | '.join(cells)} |")
            last.append(f"| {task} | {name} | {' | '.join(_ends(runs, name))} |")
            costs.append(f"| {task} | {name} | {' | '.join(_costs(data, runs, task, name))} |")
    return "\n".join([*first, "", *last, "", *costs, ""])


def shaping_table(data: Mapping[str, Any]) -> str:
    """What else may be done with ExGRPO's replayed trajectories, on the tasks that have such runs."""
    lines = [
        "| task | method | seeds | mean over the run | to ExGRPO | Mean@32 held out | to ExGRPO |",
        "| --- | --- | ---: | --- | --- | --- | --- |",
    ]
    names = ("ExGRPO", *SHAPING)
    for task in tasks(data, names):
        runs = by_method(data, task, names)
        for name, each in runs.items():
            cells = []
            for measure in (area_of, lambda run: run["last"]["held_out_pass_1"]):
                mine, base = [measure(run) for run in each], [measure(run) for run in runs["ExGRPO"]]
                gap = marked(estimate(np.subtract(mine, base).tolist()))
                cells += [str(estimate(mine)), "" if name == "ExGRPO" else gap]
            lines.append(f"| {task} | {name} | {len(each)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _ends(runs: Mapping[str, Rows], name: str) -> list[str]:
    cells = []
    for measure in ("held_out_pass_1", "held_out_pass_32", "trained_pass_1"):
        mine = [run["last"][measure] for run in runs[name]]
        base = [run["last"][measure] for run in runs["on-policy"]]
        gap = "" if name == "on-policy" else marked(estimate(np.subtract(mine, base).tolist()))
        cells += [str(estimate(mine)), gap]
    return [*cells, f"{np.mean([run['last']['entropy'] for run in runs[name]]):.2f}"]


def _costs(data: Mapping[str, Any], runs: Mapping[str, Rows], task: str, name: str) -> list[str]:
    settings = dict(setting.split("=", 1) for setting in data["chosen"][task][name])
    shown = ("loop.lr", "loop.questions", "loop.reuse", "loop.updates", "off_policy_loss", "exp_rescue")
    won = [f"{key.rpartition('.')[2]} {value}" for key, value in settings.items() if key.endswith(shown)]
    updates = int(settings.get("loop.reuse", 1)) * int(settings.get("loop.updates", 1))
    time = sum(run["processor_seconds"] for run in runs[name])
    base = sum(run["processor_seconds"] for run in runs["on-policy"])
    means = [np.mean([run[column] for run in runs[name]]) for column in ("steps", "visits")]
    return [", ".join(won), f"{means[0] * updates:.0f}", f"{means[1]:.1f}", f"{time / base:.2f}"]


def draw_differences(data: Mapping[str, Any], path: Path) -> None:
    """What each kind of replay gains over tuned on-policy training on each task, with 95 % intervals."""
    from matplotlib import pyplot as plt

    shown = tasks(data)
    figure, axis = plt.subplots(figsize=(7.5, 0.75 * len(shown) + 1.2))
    for row, task in enumerate(shown):
        runs = by_method(data, task)
        base = [area_of(run) for run in runs["on-policy"]]
        for offset, name in ((-0.14, "group replay"), (0.14, "ExGRPO")):
            gap = estimate(np.subtract([area_of(run) for run in runs[name]], base).tolist())
            label = name if row == 0 else None
            axis.plot([gap.low, gap.high], [row + offset] * 2, color=COLORS[name], linewidth=2)
            axis.plot(gap.mean, row + offset, "o", color=COLORS[name], markersize=8, label=label)
            axis.annotate(f"{gap.mean:+.3f}", (gap.high, row + offset), (6, -3), textcoords="offset points", fontsize=8)
    axis.axvline(0, color="0.3", linewidth=1)
    axis.set(
        yticks=range(len(shown)), yticklabels=shown, xlabel="accuracy over the run, difference to tuned on-policy GRPO"
    )
    axis.invert_yaxis()
    axis.set_title("at equal generated tokens: left of the line worse, right of it better", fontsize=10)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    axis.margins(x=0.12)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def draw_curves(data: Mapping[str, Any], path: Path) -> None:
    """Accuracy by generated tokens; bands are 95 % intervals over seeds."""
    from matplotlib import pyplot as plt

    shown = tasks(data)
    figure, axes = plt.subplots(1, len(shown), figsize=(3.4 * len(shown), 3.2), squeeze=False)
    for axis, task in zip(axes[0], shown, strict=True):
        tokens = np.linspace(0, RARE_TASKS[task].budget, 41)
        measure = RARE_TASKS[task].measure
        for name, runs in by_method(data, task).items():
            curves = [np.interp(tokens, run["curve"]["generated"], run["curve"][measure]) for run in runs]
            middle = [estimate(values) for values in np.transpose(curves).tolist()]
            axis.plot(tokens / 1000, [one.mean for one in middle], color=COLORS[name], label=name)
            low, high = [one.low for one in middle], [one.high for one in middle]
            axis.fill_between(tokens / 1000, low, high, color=COLORS[name], alpha=0.15, linewidth=0)
        asked = "held-out" if measure == "test" else "training"
        axis.set(title=task, xlabel="generated tokens, thousands", ylabel=f"accuracy, {asked} questions")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes.flat[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Collect if asked to, then print the tables and draw the pictures."""
    import matplotlib

    matplotlib.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "docs" / "experiments")
    arguments = parser.parse_args()
    file = arguments.output / "rare-success.json"
    if arguments.collect:
        file.write_text(json.dumps(collect(arguments.collect), separators=(",", ":")) + "\n")
    data = json.loads(file.read_text())
    print(tables(data))
    print(shaping_table(data))
    draw_differences(data, arguments.output / "rare-success.png")
    draw_curves(data, arguments.output / "rare-success-curves.png")


if __name__ == "__main__":
    main()
