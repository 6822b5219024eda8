"""Each method with the same grid and as many runs, task by task: a search by halving, then the reported seeds.

    python lab/studies/equal_grids.py [TASK ...] [--report] [--carry] [--jobs 2] [--file FILE]

By lab/pages/equal-grids-protocol.md. Each run is a row of the file, written when the run ends: a stopped study
goes on with the same command, on any machine. Without --report it searches only.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import study_folders
import torch
from ablate import parse, workers
from fast_policy import FastPolicy
from minimal_loop import Task
from once_tasks import EVERY_TASK, ONCE_TASKS
from rare_tasks import load
from run_measures import area, last_test, test
from study_folders import RULES
from study_loop import train
from study_runs import FIRST_SEARCH_SEED, Point, Results, Run, parser_of

from exgrpo.console import in_one_line

FILE = study_folders.RUNS / "equal-grids.parquet"
# method -> its settings
METHODS: dict[str, dict[str, str]] = {
    "on-policy": {"trainer.experience": "False"},
    "ExGRPO": {},
    "group replay": {"trainer.exp_unit": "group", "policy_loss.off_policy_loss": "topr"},
}
AS_VERLS_USERS = {
    **METHODS["on-policy"],
    "study.objective": "as_verls_users",
    "policy_loss.cliprange_low": ".2",
    "policy_loss.cliprange_high": ".28",
}
# control -> the method at whose winning point it runs, and its settings
CONTROLS: dict[str, tuple[str, dict[str, str]]] = {
    "prompt": ("ExGRPO", {"trainer.exp_unit": "prompt"}),
    "phantom": ("ExGRPO", {"policy_loss.off_policy_loss": f"{RULES}:phantom"}),
    "on-policy, as verl's users": ("on-policy", AS_VERLS_USERS),
    "on-policy, retiring": ("on-policy", {"trainer.experience_ratio": "0"}),
    "past groups beside": ("group replay", {**METHODS["group replay"], "trainer.exp_retirement": "never"}),
}
BESIDE = CONTROLS["past groups beside"][1]
# past groups in place of fresh ones without an advantage: all groups of a step are fresh at first
FOR_DEAD = {**BESIDE, "trainer.exp_place": "dead", "trainer.experience_ratio": ".9"}
# a stored success joins a group that failed, with TOPR; no question is drawn for replay or retired
RESCUE = {
    "trainer.experience_ratio": "0",
    "trainer.exp_retirement": "never",
    "trainer.exp_rescue": "True",
    "policy_loss.off_policy_loss": "topr",
}
# what the rounds for breadth, the search of backward and the study of a weak model chose, and a control -> the method
# at whose winning point it runs, but for what differs, and its settings
CHOSEN: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "on-policy, half rate": ("on-policy", {"rate": "5e-5"}, METHODS["on-policy"]),
    "on-policy, quarter rate": ("on-policy", {"rate": "2.5e-5"}, METHODS["on-policy"]),
    "past groups beside, half rate": ("group replay", {"rate": "5e-5"}, BESIDE),
    "past groups beside, quarter rate": ("group replay", {"rate": "2.5e-5"}, BESIDE),
    "past groups beside, two fresh": ("group replay", {"fresh": "2"}, BESIDE),
    "past groups for dead": ("group replay", {}, FOR_DEAD),
    "past groups for dead, half rate": ("group replay", {"rate": "5e-5"}, FOR_DEAD),
    "past groups for dead, quarter rate": ("group replay", {"rate": "2.5e-5"}, FOR_DEAD),
    "rescue": ("on-policy", {}, RESCUE),
    "rescue, half rate": ("on-policy", {"rate": "5e-5"}, RESCUE),
}
KEYS = METHODS | {name: own for name, (*_, own) in (CONTROLS | CHOSEN).items()}
# of a search on another task than the first: what the rounds chose
OWN = ("on-policy", "past groups beside", "past groups for dead")
BASE = "base"  # not trained
CARRIED = ", as on caesar"  # behind a method's name: what won there, on another task
COMMON = {"trainer.experience_start_sratio": "0", "loop.tests": "8"}
TASKS = ("caesar", "backward", "rare-mod", "rare-sum", "sorting", *ONCE_TASKS)

GRID: dict[str, tuple[str, ...]] = {
    "rate": ("5e-5", "1e-4", "2e-4", "3.5e-4", "5e-4"),
    "fresh": ("2", "4", "8"),
    "epochs": ("1", "2", "4", "8"),
    "clip": ("yes", "no"),
}
# each axis with what comes after its ends: the grid's, but that a neighbour may be beyond it
LINE = {
    "rate": ("2.5e-5", *GRID["rate"], "7e-4"),
    "fresh": ("1", *GRID["fresh"], "16"),
    "epochs": (*GRID["epochs"], "16"),
    "clip": GRID["clip"],
}
SEARCHED = 2  # seeds of the search for each candidate of the first round
NEAR = 3  # the best of the first round, whose neighbours on the grid are candidates too
ROUNDS = ((2, 8), (4, 3), (8, 1))  # then: seeds for each candidate, and how many go on
REPORTED, CONTROLLED = 20, 10  # seeds
SLOW = ("rare-mod", "rare-sum")  # where half the rate helps on-policy GRPO: a quarter is tried there too
DRAWS, BASES = 3, 2  # a seed has the draw of questions seed % 3 and the base seed % 2


def overrides(run: Run, own: Mapping[str, str]) -> list[str]:
    """A run's settings as key=value; its method's own among them."""
    # half of a step's groups are stored ones where these stand beside fresh ones
    beside = own.get("trainer.exp_unit") == "group" and own.get("trainer.exp_place") != "dead"
    groups = int(run.point.fresh) * (2 if beside else 1)
    settings = {
        **COMMON,
        "loop.tokens": str(EVERY_TASK[run.task].budget),
        "loop.lr": run.point.rate,
        "loop.questions": str(groups),
        "loop.reuse": run.point.epochs,
        "policy_loss.loss_remove_clip": str(run.point.clip == "no"),
        **own,
    }
    return [f"{key}={value}" for key, value in settings.items()]


def perform(run: Run) -> dict[str, Any]:
    """Train with the settings of the run's method."""
    return trained(run, {} if run.method == BASE else KEYS[run.method.removesuffix(CARRIED)])


def trained(run: Run, own: Mapping[str, str]) -> dict[str, Any]:
    """Train; the first measure and the processor seconds, and of a reported run its curve and its end."""
    return trained_from(*load(EVERY_TASK[run.task], run.seed % DRAWS, run.seed % BASES), run, own)


def trained_from(
    policy: FastPolicy, task: Task, run: Run, own: Mapping[str, str], budget: int | None = None
) -> dict[str, Any]:
    """Train this policy on these questions; budget: of generated tokens, if not the task's."""
    torch.set_num_threads(1)
    began, budget = time.process_time(), budget or EVERY_TASK[run.task].budget
    if run.method == BASE:
        curve = [{"generated": 0, **test(policy, task)}]
    else:
        experience, loss, loop, objective = parse(overrides(run, {**own, "loop.tokens": str(budget)}))
        rows = train(policy, task, experience, loss, replace(loop, seed=run.seed), objective, test)
        curve = [row for row in rows if "test" in row]
    found: dict[str, Any] = {"seconds": round(time.process_time() - began, 1)}
    found["area"] = round(area(curve, budget, "test"), 4)
    if run.is_reported:
        kept = ("generated", "test", "trained", "entropy")
        found["curve"] = [{name: round(row[name], 4) for name in kept if name in row} for row in curve]
        found["last"] = {name: round(value, 4) for name, value in last_test(policy, task).items()}
    return found


def search(task: str, results: Results, executor: ProcessPoolExecutor) -> dict[str, Point]:
    """Method -> the point that wins, by halving; all methods do a round together."""
    methods = METHODS if task == TASKS[0] else OWN
    left = {name: third() for name in methods}

    def best(name: str, seeds: int, count: int) -> list[Point]:
        return sorted(left[name], key=lambda point: -results.mean(tried(task, name, point, seeds)))[:count]

    def run(seeds: int) -> None:
        every = [run for name in methods for point in left[name] for run in tried(task, name, point, seeds)]
        results.do(every, executor, perform)

    run(SEARCHED)
    left = {name: [*left[name], *neighbours(best(name, SEARCHED, NEAR))] for name in methods}
    for seeds, count in ROUNDS:
        run(seeds)
        left = {name: best(name, seeds, count) for name in methods}
    return {name: points[0] for name, points in left.items()}


def third() -> list[Point]:
    """A third of the grid: each rate with each number of epochs once, with one number of groups."""
    points = [Point(*values) for values in itertools.product(*GRID.values())]
    axes = ("rate", "fresh", "epochs")
    return [point for point in points if sum(LINE[axis].index(getattr(point, axis)) for axis in axes) % 3 == 0]


def neighbours(points: Sequence[Point]) -> list[Point]:
    """Points that are a step on one axis away from one of these, beyond an end of the grid too; none of the third."""
    near = []
    for point, (axis, values) in itertools.product(points, LINE.items()):
        place = values.index(getattr(point, axis))
        near += [point._replace(**{axis: value}) for value in values[max(0, place - 1) : place + 2]]
    return [point for point in dict.fromkeys(near) if point not in third()]


def tried(task: str, method: str, point: Point, seeds: int) -> list[Run]:
    return [Run(task, method, point, FIRST_SEARCH_SEED + seed) for seed in range(seeds)]


def reported(task: str, winners: dict[str, Point]) -> list[Run]:
    """Of the methods and on the first task their controls, seed by seed, and of the bases."""
    is_first = task == TASKS[0]
    seeds = range(REPORTED if is_first else CONTROLLED)
    runs = [Run(task, name, point, seed) for seed in seeds for name, point in winners.items()]
    points = {name: winners[method] for name, (method, _) in CONTROLS.items()} if is_first else {}
    runs += [Run(task, name, point, seed) for seed in range(CONTROLLED) for name, point in points.items()]
    return runs + bases(task)


def bases(task: str) -> list[Run]:
    """Each draw of questions with each base, untrained."""
    return [Run(task, BASE, Point("0", "0", "0", "no"), seed) for seed in range(DRAWS * BASES)]


def carried(winners: dict[str, Point]) -> list[Run]:
    """What won on the first task and what the rounds chose there, on the others; seed by seed."""
    chosen = {name: winners[method]._replace(**other) for name, (method, other, _) in CHOSEN.items()}
    first, *others = TASKS
    runs = []
    for seed, task, (name, point) in itertools.product(range(CONTROLLED), TASKS, (winners | chosen).items()):
        is_reported = task == first and name in winners
        if not (is_reported or is_left_out(name, task)):
            runs.append(Run(task, name if task == first else name + CARRIED, point, seed))
    return runs + [run for task in others for run in bases(task)]


def is_left_out(name: str, task: str) -> bool:
    """Whether a chosen method does not run on a task: what fails and is asked once has nothing stored to rescue it."""
    if "two fresh" in name:
        return task not in ONCE_TASKS
    if "quarter" in name or name == "rescue, half rate":
        return task not in SLOW
    return name == "rescue" and task in ONCE_TASKS


def main(arguments: Sequence[str] | None = None) -> None:
    """Search each task, print what won; with --report, run the reported seeds."""
    parser = parser_of(__doc__, FILE)
    parser.add_argument("task", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--report", action="store_true", help="then the reported seeds of each winner, and controls")
    parser.add_argument("--carry", action="store_true", help=f"with {TASKS[0]}: what won there, on the other tasks")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.task if name not in TASKS]:
        parser.error(f"{unknown[0]}: must be one of {', '.join(TASKS)}")
    results = Results(options.file)
    with workers(options.jobs) as executor:
        for task in options.task:
            winners = search(task, results, executor)
            for name, point in winners.items():
                won = " ".join(f"{axis}={value}" for axis, value in zip(GRID, point, strict=True))
                print(f"{task}: {name}: {won}", flush=True)
            runs = reported(task, winners) if options.report else []
            runs += carried(winners) if options.carry and task == TASKS[0] else []
            results.do(runs, executor, perform)


if __name__ == "__main__":
    with in_one_line("equal_grids.py", "the same command goes on"):
        main()
