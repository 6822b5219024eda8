"""The paper's regime in small: 1,024 questions, each asked once or twice, of a base that is right on nearly half.

    python lab/studies/many_questions.py [--jobs 2] [--file FILE]   the search, then the reported seeds
    python lab/studies/many_questions.py --base                    make the base again, and measure it

By lab/pages/many-questions-protocol.md. Sums of three to eight digits; how often the base works carefully, and does
not blurt out a guess, falls with the length from nearly always to almost never: most groups of the shortest and of the
longest sums have no advantage. Each run is a row of the file: a stopped study goes on with the same command.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import study_folders
import torch
from ablate import parse, workers
from bases import make
from minimal_loop import Policy, Task
from rare_tasks import BASES, RareTask, load
from run_measures import area, last_test
from skills import SKILLS, Phase, box
from study_folders import RULES
from study_loop import train
from study_runs import FIRST_SEARCH_SEED, Point, Results, Run, parser_of

from exgrpo.console import in_one_line

SUM = SKILLS["sum"]
TRAIN, TEST, ANSWERS = 1024, 256, 2  # questions; answers to each held-out one at a test
FILE = study_folders.RUNS / "many-questions.parquet"
CAREFUL = {3: 0.97, 4: 0.9, 5: 0.6, 6: 0.2, 7: 0.05, 8: 0.01}  # share of careful answers by the number of digits


def _mostly_careful_if_short(question: str, rng: random.Random) -> str:
    if rng.random() < CAREFUL[question.count("+") + 1]:
        return SUM.careful(question)
    return box(str(max(0, int(SUM.answer(question)) + rng.randint(-20, 20))))


def split() -> tuple[list[str], list[str]]:
    held = SUM.held_back()
    return held[512 : 512 + TRAIN], held[:TEST]


TASK = RareTask(
    name="many-sums",
    question=SUM.question,
    careful=SUM.careful,
    careless=_mostly_careful_if_short,
    reward=SUM.reward,
    phases=(Phase(400, 0.0, 1e-3),),
    start=BASES / "sum",
    max_tokens=SUM.max_tokens,
    budget=450_000,
    kept_back=SUM.held_back,
    split=split,
)

# method -> what differs; all have 16 groups a step, two updates and PPO's clip of fresh tokens
METHODS: dict[str, dict[str, str]] = {
    "on-policy": {"trainer.experience": "False"},
    "ExGRPO": {},
    "prompt": {"trainer.exp_unit": "prompt"},
    "phantom": {"policy_loss.off_policy_loss": f"{RULES}:phantom"},
}
# what the paper's figure 1a masks, by the share of right rows of a group: .25 or less, between, .75 or more
MASKED = {
    f"only {level}": {"trainer.experience": "False", "study.objective": f"only_{level}"}
    for level in ("hard", "medium", "easy")
}
COMMON = {"loop.tests": "12", "loop.questions": "16", "loop.updates": "2", "policy_loss.loss_remove_clip": "False"}
RATES = ("2.5e-5", "5e-5", "1e-4", "2e-4")
SEARCHED, REPORTED, EXPLORED = 2, 10, 5


def at_rate(method: str, rate: str, seed: int) -> Run:
    return Run(TASK.name, method, Point(rate, "16", "1", "yes"), seed)


def perform(run: Run) -> dict[str, Any]:
    """Train; the mean over the run, its curve, and its end if it is a reported one."""
    torch.set_num_threads(1)
    began = time.process_time()
    settings = {**COMMON, **(METHODS | MASKED)[run.method], "loop.lr": run.point.rate, "loop.tokens": str(TASK.budget)}
    experience, loss, loop, objective = parse([f"{key}={value}" for key, value in settings.items()])
    policy, task = load(TASK)
    rows = list(train(policy, task, experience, loss, replace(loop, seed=run.seed), objective, test))
    kept = ("generated", "test", "entropy", "fresh_score", "pool_trajectories")
    curve = [{name: round(row[name], 4) for name in kept if name in row} for row in rows if "test" in row]
    found: dict[str, Any] = {"seconds": round(time.process_time() - began, 1)}
    found |= {"area": round(area(curve, TASK.budget, "test"), 4), "steps": rows[-1]["step"], "curve": curve}
    if run.is_reported:
        found["last"] = {name: round(value, 4) for name, value in last_test(policy, task).items()}
    return found


def test(policy: Policy, task: Task) -> dict[str, float]:
    """Share of right answers to the held-out questions."""
    asked = [question for question in task.test for _ in range(ANSWERS)]
    replies = map(policy.decode, policy.sample(asked, 0))
    right = [task.reward(question, reply) for question, reply in zip(asked, replies, strict=True)]
    return {"test": sum(right) / len(right)}


def facts(rollouts: int = 8) -> dict[str, float]:
    """Of the base: accuracy on the held-out questions, and the share of groups without an advantage."""
    policy, task = load(TASK)
    torch.manual_seed(0)
    asked = [question for question in task.test for _ in range(rollouts)]
    replies = map(policy.decode, policy.sample(asked, 0))
    right = [task.reward(question, reply) for question, reply in zip(asked, replies, strict=True)]
    solved = torch.tensor(right).view(-1, rollouts).sum(1)
    dead = (solved == 0) | (solved == rollouts)
    return {"accuracy": float(solved.mean() / rollouts), "without_advantage": float(dead.float().mean())}


def main(arguments: Sequence[str] | None = None) -> None:
    """Search the rate of each method, then run the reported seeds at it; then the masked ones at on-policy's."""
    parser = parser_of(__doc__, FILE)
    parser.add_argument("--base", action="store_true", help="make the base again instead")
    options = parser.parse_args(arguments)
    if options.base:
        make(TASK)
        print(facts())
        return
    results = Results(options.file)
    searched = {
        (name, rate): [at_rate(name, rate, FIRST_SEARCH_SEED + seed) for seed in range(SEARCHED)]
        for name in METHODS
        for rate in RATES
    }
    with workers(options.jobs) as executor:
        results.do((run for runs in searched.values() for run in runs), executor, perform)
        won = {name: max(RATES, key=lambda rate: results.mean(searched[name, rate])) for name in METHODS}
        print(f"rates: {won}", flush=True)
        reported = [at_rate(name, won[name], seed) for seed in range(REPORTED) for name in METHODS]
        results.do(reported, executor, perform)
        masked = [at_rate(name, won["on-policy"], seed) for seed in range(EXPLORED) for name in MASKED]
        results.do(masked, executor, perform)


if __name__ == "__main__":
    with in_one_line("many_questions.py", "the same command goes on"):
        main()
