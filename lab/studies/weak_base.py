"""Does replay rescue a weak model? On-policy GRPO at a rate at which it collapses, and the same with replay.

    python lab/studies/weak_base.py [--jobs 2] [--file FILE]   run what is missing, print the table, draw

The paper's figure 4: its weakest model collapses on-policy and learns with ExGRPO. Tasks and bases are those where
success is rare. Each run is a row of the file: a stopped study goes on with the same command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import study_folders
from ablate import parse
from comparison import estimate
from equal_grids import BASES, BESIDE, DRAWS, FOR_DEAD, KEYS, RESCUE
from seed_tables import marked, reported
from study_runs import Point, Results, Run, done
from weak_base_picture import draw

from exgrpo.console import in_one_line

FILE = study_folders.RUNS / "weak-base.parquet"
TASKS = ("rare-sum", "rare-mod", "caesar")
METHODS: dict[str, dict[str, str]] = {
    "on-policy": KEYS["on-policy"],
    "ExGRPO": KEYS["ExGRPO"],
    "past groups beside": BESIDE,
}
# which part does it: past groups with one change, and the fresh half without them
PARTS: dict[str, dict[str, str]] = {
    "shaped as published": {**BESIDE, "policy_loss.off_policy_loss": "shaped"},
    "retiring": KEYS["group replay"],
    "past groups for dead": FOR_DEAD,
    "fresh half alone": {**KEYS["on-policy"], "loop.questions": "4"},
}
# a stored success joins a group that failed: with ExGRPO, and on its own
RESCUES: dict[str, dict[str, str]] = {
    "ExGRPO, rescuing": {"trainer.exp_rescue": "True"},
    "rescue alone": {**RESCUE, "policy_loss.off_policy_loss": "shaped"},
    "rescue alone, topr": RESCUE,
}
EVERY = METHODS | PARTS | RESCUES
COMMON = {"trainer.experience_start_sratio": "0", "loop.steps": "120", "loop.questions": "8", "loop.test_every": "6"}
SEEDS, RESCUED_SEEDS = 10, 5
POINT = Point("1e-3", "8", "1", "no")  # eight groups a step, one update without PPO's clip, as published


def perform(run: Run) -> dict[str, Any]:
    """Train; accuracy, reward, entropy and length of what is sampled, each sixth step."""
    import torch

    torch.set_num_threads(1)
    from rare_tasks import RARE_TASKS, load
    from run_measures import test
    from study_loop import train

    settings = {**COMMON, **EVERY[run.method], "loop.lr": run.point.rate}
    experience, loss, loop, objective = parse([f"{key}={value}" for key, value in settings.items()])
    policy, task = load(RARE_TASKS[run.task], run.seed % DRAWS, run.seed % BASES)
    rows = list(train(policy, task, experience, loss, replace(loop, seed=run.seed), objective, test))
    curve = []
    for before, row in zip([rows[0], *rows], rows, strict=False):
        if "test" in row:
            found = {"step": row["step"], "test": row["test"], "trained": row["trained"]}
            if row["step"]:
                single = row["replayed"] if experience.exp_unit == "trajectory" else 0
                rollouts = row["asked"] * experience.rollout_n - single
                tokens = row["generated"] - before["generated"]
                found |= {"reward": row["fresh_score"], "entropy": row["entropy"], "length": tokens / rollouts}
            curve.append({name: round(value, 4) for name, value in found.items()})
    return {"area": round(float(np.mean([row["test"] for row in curve])), 4), "curve": curve}


def measures(run: Mapping[str, Any]) -> dict[str, float]:
    """Of one run: accuracy over it, its best, its end (the last third), and whether the end is below half the best."""
    tests = [row["test"] for row in run["curve"]]
    best, end = max(tests), float(np.mean(tests[-(len(tests) // 3) :]))
    return {"over the run": float(np.mean(tests)), "best": best, "end": end, "collapsed": float(end < best / 2)}


def table(results: Results) -> str:
    """Markdown: a row a task and method, with what each is ahead of the first."""
    lines = ["| task | method | over the run | best | end | end, to on-policy | collapsed |", "| --- |" + " --- |" * 6]
    for task in TASKS:
        for name in EVERY:
            first, runs = (list(map(measures, of)) for of in _paired(results, task, name))
            cells = [str(estimate([run[key] for run in runs])) for key in ("over the run", "best", "end")]
            gaps = [run["end"] - other["end"] for run, other in zip(runs, first, strict=True)]
            cells += [marked(gaps) if any(gaps) else "", f"{sum(run['collapsed'] for run in runs):.0f} of {len(runs)}"]
            lines.append(f"| {task} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _paired(results: Results, task: str, name: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Runs of the first method and of this one, of the seeds that both have."""
    first = next(iter(METHODS))
    runs = reported(results, task, (first, name))
    return runs[first], runs[name]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print the table, draw."""
    names = {seed: EVERY if seed < RESCUED_SEEDS else METHODS | PARTS for seed in range(SEEDS)}
    runs = [Run(task, name, POINT, seed) for seed in range(SEEDS) for task in TASKS for name in names[seed]]
    results = done(__doc__, FILE, runs, perform, arguments)
    print(table(results))
    draw({task: reported(results, task, METHODS) for task in TASKS}, results.file.with_suffix(".png"))


if __name__ == "__main__":
    with in_one_line("weak_base.py", "the same command goes on"):
        main()
