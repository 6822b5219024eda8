"""Does a stored row teach? How well a step's gradient agrees with that of thousands of fresh rollouts.

    python lab/studies/gradient_agreement.py [TASK ...] [--seeds 6] [--jobs 2] [--file FILE]

An on-policy run files what it sees. At some of its steps two reference gradients are taken, of fresh rollouts to all
training and to all held-out questions, and 64 gradients of single groups of each kind: fresh, mixed as published, with
the stored row's gradient left out (phantom), the same questions anew (prompt), whole past groups with an advantage, by
age (TOPR). A step's agreement is the mean cosine, over draws of its groups from these with replacement. Gradients are
plain, not scaled by Adam.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import run_files
import study_folders
import torch
from ablate import parse, workers
from minimal_loop import Policy, Rows, Task, objective
from rare_tasks import RARE_TASKS, load
from study_folders import RULES
from study_loop import train
from torch import Tensor

from exgrpo import ExperienceReplay, Trajectory
from exgrpo.console import in_one_line
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.loss_settings import LossSettings

FILE = study_folders.RUNS / "gradient-agreement.parquet"
TASKS = ("caesar", "backward", "rare-mod")
STEPS = (20, 100)  # of the on-policy run, after which gradients are taken
AGES = ((1, 5), (6, 20), (21, 50))
GROUPS, DRAWS, REFERENCE = 64, 1000, 8192  # gradients of a kind; bootstrap; rollouts of a reference
K = 8
# name -> kinds of a step's groups and how many; 32 rollouts are generated, but 30 for ExGRPO and phantom, 64 for twice
COMPOSITIONS: dict[str, Mapping[str, int]] = {
    "on-policy": {"fresh": 4},
    "ExGRPO": {"fresh": 2, "mixed": 2},
    "phantom": {"fresh": 2, "phantom": 2},
    "prompt": {"fresh": 2, "prompt": 2},
    **{f"groups of {low} to {high} steps ago": {"fresh": 4, f"{low} to {high}": 4} for low, high in AGES},
    "twice the batch": {"fresh": 8},
    "stored rows alone": {"stored row": 4},
}
SETTINGS = ("trainer.experience_ratio=0", "trainer.exp_retirement=never", "trainer.experience_start_sratio=0")
LOOP = ("loop.questions=4", "loop.lr=2e-4", f"loop.steps={max(STEPS)}", f"loop.test_every={max(STEPS)}")
Group = tuple[str, list[Trajectory]]


class History:
    """An objective that is on-policy GRPO's and keeps the groups of every step."""

    def __init__(self) -> None:
        self.steps: list[list[Group]] = []
        self.replay: ExperienceReplay | None = None

    def __call__(self, policy: Policy, rows: Rows, replay: ExperienceReplay, loss: LossSettings) -> tuple[Tensor, Any]:
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        for question, rollout in rows.fresh:
            groups[question].append(rollout)
        self.steps.append(list(groups.items()))
        self.replay = replay
        return objective(policy, rows, replay, loss)

    def of_age(self, low: int, high: int) -> list[Group]:
        """Groups with an advantage of so many steps ago; none if not that many steps are done."""
        if len(self.steps) < high:
            return []
        groups = [group for step in self.steps[-high : len(self.steps) - low + 1] for group in step]
        return [(question, mine) for question, mine in groups if len({one.reward for one in mine}) > 1]


class Gradients:
    """Of a policy, which they leave as it is, on a task."""

    def __init__(self, policy: Policy, task: Task, history: History, rng: np.random.Generator) -> None:
        assert history.replay is not None
        self._policy, self._task, self._history, self._rng = policy, task, history, rng
        self._replay = history.replay
        self._published, self._phantom, self._topr = (
            LossSettings.from_mapping({"off_policy_loss": name}) for name in ("shaped", f"{RULES}:phantom", "topr")
        )

    def of(self, rows: Rows, loss: LossSettings) -> Tensor:
        """Of an update on these rows, [parameters]."""
        parameters = list(self._policy.model.parameters())
        value, _ = objective(self._policy, rows, self._replay, loss)
        return torch.cat([each.flatten() for each in torch.autograd.grad(value, parameters)])

    def sampled(self, questions: Sequence[str]) -> list[Group]:
        """Fresh rollouts, K of each question."""
        rollouts = iter(self._policy.sample([question for question in questions for _ in range(K)], 0))
        graded = []
        for question in questions:
            mine = [next(rollouts) for _ in range(K)]
            rewards = [self._task.reward(question, self._policy.decode(one)) for one in mine]
            graded.append((question, [replace(one, reward=r) for one, r in zip(mine, rewards, strict=True)]))
        return graded

    def reference(self, questions: Sequence[str]) -> tuple[Tensor, float]:
        """Mean of fresh groups of all these questions, and how well its two halves agree."""
        rounds = REFERENCE // K // len(questions)
        parts = [self.of(fresh_rows(self.sampled(questions)), self._published) for _ in range(rounds)]
        halves = [torch.stack(parts[number::2]).mean(0) for number in (0, 1)]
        return torch.stack(parts).mean(0), cosine(*halves)

    def kinds(self) -> Iterator[tuple[str, Tensor]]:
        """Kind -> gradients of its groups, [groups, parameters]; the kinds with the same questions share rollouts."""
        fresh = self.sampled(self._rng.choice(self._task.train, GROUPS).tolist())
        yield "fresh", torch.stack([self.of(fresh_rows([group]), self._published) for group in fresh])
        drawn = [question for _ in range(GROUPS) for question in self._replay.pool.choose(1, self._rng)]
        anew = self.sampled(drawn)
        yield "prompt", torch.stack([self.of(fresh_rows([group]), self._published) for group in anew])
        chosen = self._replay.choose(self._replay.candidates(dict.fromkeys(drawn)), self._policy.views).trajectories
        mixed = [Rows([(q, one) for one in mine[: K - 1]], [(q, chosen[q])]) for q, mine in anew]
        published, phantom = (
            torch.stack([self.of(rows, loss) for rows in mixed]) for loss in (self._published, self._phantom)
        )
        yield from (("mixed", published), ("phantom", phantom), ("stored row", published - phantom))
        for low, high in AGES:
            if stored := self._history.of_age(low, high):
                rows = [whole(stored[number]) for number in self._rng.integers(len(stored), size=GROUPS)]
                yield f"{low} to {high}", torch.stack([self.of(each, self._topr) for each in rows])


def fresh_rows(groups: Sequence[Group]) -> Rows:
    return Rows([(question, one) for question, mine in groups for one in mine], [])


def whole(group: Group) -> Rows:
    """A past group, for which nothing is generated."""
    question, mine = group
    return Rows([], [], [ReplayedGroup.whole(StoredGroup(question, mine[0].step, tuple(mine)))])


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def agreements(kinds: Mapping[str, Tensor], reference: Tensor, rng: np.random.Generator) -> dict[str, float]:
    """Of each composition of a step whose kinds are there, its mean cosine with the reference."""
    starts = {kind: number * GROUPS for number, kind in enumerate(kinds)}
    every = torch.cat(list(kinds.values()))
    along, products = (every @ reference / reference.norm()).numpy(), (every @ every.T).numpy()
    found = {}
    for name, parts in COMPOSITIONS.items():
        if parts.keys() <= kinds.keys():
            of_kinds = [starts[kind] + rng.integers(GROUPS, size=(DRAWS, count)) for kind, count in parts.items()]
            drawn = np.concatenate(of_kinds, 1)  # [draws, groups of a step]
            squares = products[drawn[:, :, None], drawn[:, None, :]].sum((1, 2))
            found[name] = float(np.mean(along[drawn].sum(1) / np.sqrt(np.maximum(squares, 1e-24))))
    return found


def perform(task_name: str, seed: int) -> list[dict[str, Any]]:
    """One on-policy run: for each of STEPS and both references, a row with the agreements."""
    torch.set_num_threads(1)
    experience, loss, loop, _ = parse([*SETTINGS, *LOOP])
    policy, task = load(RARE_TASKS[task_name], seed % 3, seed % 2)
    history, found = History(), []
    for row in train(policy, task, experience, loss, replace(loop, seed=seed), history):
        if row["step"] in STEPS:
            state, rng = torch.get_rng_state(), np.random.default_rng(seed)
            gradients = Gradients(policy, task, history, rng)
            kinds = dict(gradients.kinds())
            for asked, questions in (("training", task.train), ("held-out", task.test)):
                reference, halves = gradients.reference(questions)
                facts = {"task": task_name, "seed": seed, "step": row["step"], "reference": asked, "halves": halves}
                found.append(facts | {"cosine": agreements(kinds, reference, rng)})
            torch.set_rng_state(state)
    return found


def go_on(
    description: str | None, file: Path, perform: Callable[[str, int], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The command of a study of gradients: what is missing from the file is measured; all its rows."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*", default=list(TASKS), help=f"of {', '.join(RARE_TASKS)}")
    parser.add_argument("--seeds", type=int, default=6, help="0..N-1 (default 6)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: cores)")
    parser.add_argument("--file", type=Path, default=file, help="one row a measurement, Parquet")
    options = parser.parse_args()
    there = {(row["task"], row["seed"]) for row in run_files.read(options.file)}
    missing = [(task, seed) for seed in range(options.seeds) for task in options.task if (task, seed) not in there]
    with workers(options.jobs) as executor:
        for found in executor.map(perform, *zip(*missing, strict=True)) if missing else ():
            run_files.add(options.file, *found)
    run_files.pack(options.file)
    return run_files.read(options.file)


if __name__ == "__main__":
    with in_one_line("gradient_agreement.py", "the same command goes on"):
        go_on(__doc__, FILE, perform)
