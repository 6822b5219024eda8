"""Does a lucky success that is replayed breed others? The paper's snowball effect (appendix F.4), measured.

    python lab/studies/snowball.py [--jobs 2] [--file FILE]    run what is missing, print the table

The reward sees the final answer alone; here each step of an answer can be checked (lucky_successes.py): a success is
lucky if it is not worked out. Each run is a row of the file: a stopped study goes on with the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import study_folders
from ablate import parse
from comparison import estimate
from minimal_loop import Policy, Row, Rows, objective
from seed_tables import marked, reported
from studies import COMMON
from study_runs import Point, Results, Run, done

from exgrpo import ExperienceReplay
from exgrpo.console import in_one_line
from exgrpo.loss_settings import LossSettings

FILE = study_folders.RUNS / "snowball.parquet"
TASKS = ("sum", "mod")
LATE = "trainer.experience_start_sratio=0.35"
METHODS = {
    "lowest entropy": (),
    "highest entropy": ("trainer.exp_select_mode=argmax",),
    "random": ("trainer.exp_metric=random",),
    "on-policy": ("trainer.experience=False",),
    # the pool is empty until more than .35 of a batch are right: is it cleaner then?
    "lowest entropy, late start": (LATE,),
    "random, late start": (LATE, "trainer.exp_metric=random"),
}
SEEDS, STEPS = 10, 40
POINT = Point("1e-4", "8", "1", "no")


class Counted:
    """The published loss; of each step how many of the fresh and of the replayed successes are lucky.

    Args:
        careful: question -> the answer that works it out.
    """

    def __init__(self, careful: Callable[[str], str]) -> None:
        self._careful = careful
        self.steps: list[dict[str, int]] = []

    def __call__(self, policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> Any:
        counts: dict[str, int] = {}
        for name, each in (("fresh", rows.fresh), ("replayed", rows.past)):
            solved = [row for row in each if row[1].reward == 1]
            counts |= {name: len(solved), f"{name} lucky": sum(self._is_lucky(policy, row) for row in solved)}
        self.steps.append(counts)
        return objective(policy, rows, replay, loss)

    def _is_lucky(self, policy: Policy, row: Row) -> bool:
        question, success = row
        return policy.decode(success) != self._careful(question)


def perform(run: Run) -> dict[str, Any]:
    """Train; the counts of each step, and the accuracy at the end."""
    import torch

    torch.set_num_threads(1)
    from fast_policy import FastPolicy
    from skills import SKILLS, load
    from study_loop import train

    experience, loss, loop, _ = parse([*COMMON, f"loop.steps={STEPS}", *METHODS[run.method]])
    slow, task = load(run.task)
    policy, counted = FastPolicy(slow.model, slow.tokenizer, slow.max_tokens), Counted(SKILLS[run.task].careful)
    *_, last = train(policy, task, experience, loss, replace(loop, seed=run.seed), counted)
    return {"end": round(last["test"], 4), "steps": [[*step.values()] for step in counted.steps]}


def measures(run: Mapping[str, Any]) -> dict[str, float]:
    """Of one run: shares of lucky successes in the first and the last third of the steps, and the accuracy."""
    steps = np.array(run["steps"])  # fresh, of them lucky, replayed, of them lucky
    third = len(steps) // 3
    early, late = steps[:third].sum(0), steps[-third:].sum(0)
    return {
        "replayed, first third": early[3] / early[2] if early[2] else np.nan,
        "replayed, last third": late[3] / late[2] if late[2] else np.nan,
        "fresh, first third": early[1] / max(early[0], 1),
        "fresh, last third": late[1] / max(late[0], 1),
        "accuracy": run["end"],
    }


def table(results: Results) -> str:
    """Markdown: a row a task and method; what the last share of fresh ones is above that of the first method."""
    lines, first = list[str](), next(iter(METHODS))
    for task in TASKS:
        found = {name: list(map(measures, runs)) for name, runs in reported(results, task, METHODS).items()}
        for name, runs in found.items():
            titles = list(runs[0])
            if not lines:
                lines = [f"| task | method | {' | '.join(titles)} | fresh, last third, to {first} |"]
                lines.append("| --- |" + " --- |" * (2 + len(titles)))
            of = [[run[title] for run in runs if not np.isnan(run[title])] for title in titles]
            cells = [str(estimate(each)) if each else "" for each in of]
            pairs = zip(runs, found[first], strict=True)
            gaps = [run["fresh, last third"] - other["fresh, last third"] for run, other in pairs]
            cells.append(marked(gaps) if any(gaps) else "")
            lines.append(f"| {task} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, print the table."""
    runs = [Run(task, name, POINT, seed) for seed in range(SEEDS) for task in TASKS for name in METHODS]
    print(table(done(__doc__, FILE, runs, perform, arguments)))


if __name__ == "__main__":
    with in_one_line("snowball.py", "the same command goes on"):
        main()
