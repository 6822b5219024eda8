"""The paper's figures 5 to 8 and its Tables 3 and 6 in small: what each part does to accuracy, entropy and the buffer.

    python lab/studies/paper_figures.py [--jobs 2] [--file FILE]   run what is missing, print the table, draw

By lab/pages/paper-figures.md, in the world of many_questions.py, at equal steps as in the paper. Each run is a row
of the file: a stopped study goes on with the same command.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import study_folders
import torch
from ablate import parse
from comparison import estimate
from curves import draw_mean
from many_questions import COMMON, TASK, test
from matplotlib import pyplot as plt
from rare_tasks import load
from run_measures import last_test
from seed_tables import Runs, marked, reported
from study_loop import train
from study_runs import Point, Results, Run, done

from exgrpo.console import in_one_line

matplotlib.use("Agg")
FILE = study_folders.RUNS / "paper-figures.parquet"
FIRST = "ExGRPO"
# the paper's variants, each one change of ExGRPO
VARIANTS: dict[str, dict[str, str]] = {
    FIRST: {},
    "on-policy": {"trainer.experience": "False"},
    "no question selection": {"trainer.exp_bucket_manager": "False"},
    "no trajectory selection": {"trainer.exp_metric": "random"},
    "neither": {"trainer.exp_bucket_manager": "False", "trainer.exp_metric": "random"},
    "highest entropy": {"trainer.exp_select_mode": "argmax"},
    "no shaping": {"policy_loss.off_policy_reshape": "no_reshape"},
    "no correction": {"trainer.exp_is_correct": "False"},
    "ratio .25": {"trainer.experience_ratio": ".25"},
    "ratio .75": {"trainer.experience_ratio": ".75"},
    "sigma .5": {"trainer.exp_bucket_sigma": ".5"},
    "sigma 1.5": {"trainer.exp_bucket_sigma": "1.5"},
    "mean .25": {"trainer.exp_bucket_mean": ".25"},
}
POINT = Point("1e-4", "16", "1", "yes")  # the rate that won for each method of many_questions.py
STEPS, TEST_EVERY, NOTED_EVERY = 96, 8, 4
SEEDS = 4
# panel -> what it shows, and of which variants: figures 7, 8, and 5 and 6 of the paper
CONDITIONS = (FIRST, "no question selection", "ratio .75", "ratio .25")
PANELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "accuracy, held out": ("test", ("on-policy", FIRST, "no shaping", "no question selection", "neither")),
    "entropy, nats a token": ("entropy", ("on-policy", FIRST, "no shaping")),
    "stored trajectories": ("pool_trajectories", CONDITIONS),
    "retired questions": ("retired_questions", CONDITIONS),
}


def perform(run: Run) -> dict[str, Any]:
    """Train; each fourth step's entropy, reward and pool, accuracy where it was tested, and the end."""
    torch.set_num_threads(1)
    began = time.process_time()
    by_steps = {"loop.lr": run.point.rate, "loop.steps": str(STEPS), "loop.test_every": str(TEST_EVERY)}
    settings = {**COMMON, **by_steps, **VARIANTS[run.method]}
    experience, loss, loop, objective = parse([f"{key}={value}" for key, value in settings.items()])
    policy, task = load(TASK)
    rows = train(policy, task, experience, loss, replace(loop, seed=run.seed), objective, test)
    kept = ("step", "generated", "test", "entropy", "fresh_score", "pool_trajectories", "retired_questions")
    curve = [
        {name: round(row[name], 4) for name in kept if name in row}
        for row in rows
        if row["step"] % NOTED_EVERY == 0 or "test" in row
    ]
    last = {name: round(value, 4) for name, value in last_test(policy, task).items()}
    return {"seconds": round(time.process_time() - began, 1), "curve": curve, "last": last}


def measures(run: Mapping[str, Any]) -> dict[str, float]:
    """Of one run: accuracy over it and in its last third; entropy over it, in nats; its end."""
    tests = [row["test"] for row in run["curve"] if "test" in row]
    end, last = run["curve"][-1], run["last"]
    return {
        "over the run": float(np.mean(tests)),
        "last third": float(np.mean(tests[-(len(tests) // 3) :])),
        "Mean@32": last["held_out_pass_1"],
        "entropy": float(np.mean([row["entropy"] for row in run["curve"] if row["step"]])),
        "stored": end["pool_trajectories"],
        "retired": end["retired_questions"],
        "tokens": end["generated"],
    }


def table(runs: Runs) -> str:
    """Markdown: a row a variant, accuracy to ExGRPO's paired by seed, counts as means."""
    found = {name: [measures(run) for run in each] for name, each in runs.items()}
    titles = ["over the run", f"to {FIRST}", "last third", f"to {FIRST}", "Mean@32", "entropy"]
    counts = ["stored", "retired", "tokens"]
    lines = [f"| variant | {' | '.join([*titles, *counts])} |", "| --- |" + " --- |" * len(titles) + " ---: |" * 3]
    for name, each in found.items():
        cells = []
        for key in ("over the run", "last third"):
            gaps = [run[key] - other[key] for run, other in zip(each, found[FIRST], strict=True)]
            cells += [str(estimate([run[key] for run in each])), "" if name == FIRST else marked(gaps)]
        cells += [str(estimate([run[key] for run in each])) for key in ("Mean@32", "entropy")]
        cells += [f"{np.mean([run[key] for run in each]):,.0f}" for key in counts]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(runs: Runs, path: Path) -> None:
    """Means over seeds by step, bands of one standard error."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7))
    names = list(dict.fromkeys(name for _, shown in PANELS.values() for name in shown))
    hues = ("0.45", "tab:blue", "tab:red", "tab:orange", "tab:purple", "tab:green", "tab:cyan")
    colors = dict(zip(names, hues, strict=True))
    for axis, (title, (measure, shown)) in zip(axes.flat, PANELS.items(), strict=True):
        for name in shown:
            rows = [[row for row in run["curve"] if measure in row] for run in runs[name]]
            values = np.array([[row[measure] for row in run] for run in rows])
            draw_mean(axis, [row["step"] for row in rows[0]], values, name, colors[name])
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print the table, draw."""
    runs = [Run(TASK.name, name, POINT, seed) for seed in range(SEEDS) for name in VARIANTS]
    results: Results = done(__doc__, FILE, runs, perform, arguments)
    found = reported(results, TASK.name, VARIANTS)
    print(table(found))
    draw(found, results.file.with_suffix(".png"))


if __name__ == "__main__":
    with in_one_line("paper_figures.py", "the same command goes on"):
        main()
