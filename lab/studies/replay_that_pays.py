"""Rehearsal, headroom and prefixes against all that on-policy GRPO can do.

    python lab/studies/replay_that_pays.py [TASK ...] [--arm ARM ...] [--jobs 1] [--file FILE]

By lab/pages/replay-that-pays-protocol.md. Each run is a row of the file, written when the run ends: a stopped study
goes on with the same command. It searches each arm on each task, runs the reported seeds of what won, and prints how
many runs are there; no table before all of them are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import study_folders
from ablate import workers
from equal_grids import trained_from
from once_tasks import EVERY_TASK
from rare_tasks import load
from study_runs import FIRST_SEARCH_SEED, Point, Results, Run, parser_of

from exgrpo.console import in_one_line

FILE = study_folders.RUNS / "replay-that-pays.parquet"
TASKS = ("caesar", "backward", "rare-mod", "sorting", "rotate", "addends", "anagram", "pattern")
KEPT_BACK = ("larger", "atbash", "rare-sum")  # for what wins; not run here
# a point's "clip" is "no" where the arm's alternative stands
SEEDS, DRAWS, BASES = 12, 3, 2  # a seed has the draw of questions seed % 3 and the base seed % 2
RATES, SHAPES = ("5e-5", "1e-4", "2e-4"), (("2", "2"), ("2", "4"), ("4", "4"), ("4", "8"))
GRID = tuple(Point(rate, fresh, epochs, "yes") for rate in RATES for fresh, epochs in SHAPES)
SEARCHED, NEAR, MORE = 2, 3, 4  # seeds of the grid; the best that go on with their alternative; seeds of those
GROUPS = {
    "trainer.exp_unit": "group",
    "trainer.exp_retirement": "never",
    "policy_loss.off_policy_loss": "topr",
}
REHEARSAL = {
    "trainer.exp_place": "beside",
    "trainer.exp_retirement": "never",
    "trainer.exp_eviction": "newest",
    "trainer.exp_bucket_manager": "False",
    "trainer.experience_max_per_question": "1",
    "trainer.experience_rbound": "8",
    "policy_loss.off_policy_loss": "likelihood",
}
NO_CLIP = {"policy_loss.loss_remove_clip": "True"}
ON_POLICY = {"trainer.experience": "False"}


class Arm(NamedTuple):
    """What is compared: its settings, and the one alternative that its search also tries."""

    own: Mapping[str, str]
    alternative: Mapping[str, str] = NO_CLIP
    tokens: float = 1.0  # times the task's budget


ARMS = {
    "on-policy": Arm(ON_POLICY),
    "on-policy, 1.5 rollouts": Arm({**ON_POLICY, "loop.rollout_n": "12"}, tokens=1.5),
    "null": Arm(GROUPS),
    "ExGRPO": Arm(NO_CLIP, {"policy_loss.loss_remove_clip": "False"}),  # as published without
    "rehearsal": Arm(REHEARSAL, {"policy_loss.likelihood_weight": "0.3"}),
    "headroom": Arm(
        {**GROUPS, "trainer.exp_group_choice": "headroom", "trainer.exp_max_drift": "0.1"},
        {"policy_loss.off_policy_loss": "clip"},
    ),
    "prefix": Arm(
        {"trainer.exp_unit": "prefix", "trainer.exp_retirement": "never"}, {"trainer.experience_ratio": "0.25"}
    ),
}


def own_settings(run: Run) -> dict[str, str]:
    """A run's settings but for those of its point that all arms share."""
    arm, more = ARMS[run.method], dict[str, str]()
    if arm.own.get("trainer.exp_place") == "beside":  # one place of K successes beside the fresh groups
        places = int(run.point.fresh) + 1
        more = {"loop.questions": str(places), "trainer.experience_ratio": repr(1 / places)}
    clipped = {"policy_loss.loss_remove_clip": "False"}
    return {**clipped, **arm.own, **more, **(arm.alternative if run.point.clip == "no" else {})}


def perform(run: Run) -> dict[str, Any]:
    """Train."""
    task = EVERY_TASK[run.task]
    policy, questions = load(task, run.seed % DRAWS, run.seed % BASES)
    return trained_from(policy, questions, run, own_settings(run), int(task.budget * ARMS[run.method].tokens))


def search(task: str, arm: str, results: Results, executor: ProcessPoolExecutor) -> Point:
    """The point that wins: the grid, then the best of it with their alternative."""

    def tried(point: Point, seeds: int) -> list[Run]:
        return [Run(task, arm, point, FIRST_SEARCH_SEED + seed) for seed in range(seeds)]

    def best(points: Sequence[Point], seeds: int) -> list[Point]:
        results.do([run for point in points for run in tried(point, seeds)], executor, perform)
        return sorted(points, key=lambda point: -results.mean(tried(point, seeds)))

    near = best(GRID, SEARCHED)[:NEAR]
    return best([*near, *(point._replace(clip="no") for point in near)], MORE)[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, then run the reported seeds, task by task and arm by arm."""
    parser = parser_of(__doc__, FILE)
    parser.add_argument("task", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="of these alone; may be repeated")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.task if name not in TASKS]:
        parser.error(f"{unknown[0]}: must be one of {', '.join(TASKS)}")
    results = Results(options.file)
    with workers(options.jobs) as executor:
        for task in options.task:
            for arm in options.arm or ARMS:
                point = search(task, arm, results, executor)
                results.do([Run(task, arm, point, seed) for seed in range(SEEDS)], executor, perform)
                print(f"{task}: {arm}: {' '.join(point)}; {len(results.found)} runs are there", flush=True)


if __name__ == "__main__":
    with in_one_line("replay_that_pays.py", "the same command goes on"):
        main()
