"""ExGRPO (arXiv 2510.02245) on one screen: a transformers model on a CPU, no trainer, no Ray, no vLLM.

    python exp_scripts/minimal_loop.py [--output outputs/minimal_loop] [key=value ...]

Keys are the trainer's, such as trainer.experience_ratio=0.25, trainer.experience=False for plain GRPO, or
policy_loss.off_policy_reshape=no_reshape; and the loop's, such as loop.steps=60 or loop.seed=1. Model and questions are
the quickstart's: sums of five numbers. `train` is the algorithm, the rest is sampling, scoring and a picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from minimal_policy import Policy, Task, accuracy, five_numbers
from minimal_settings import Loop, draw, settings
from torch import Tensor

from exgrpo import ExperienceConfig, ExperiencePool, RolloutGroup, Trajectory, TrajectorySelector, compute_grpo_loss
from exgrpo.experience.config import Metric
from exgrpo.loss_settings import LossSettings


class Rows(NamedTuple):
    """A step: what was asked, generated and rewarded, row by row; question -> the trajectory that joins its group."""

    asked: Sequence[str]
    rollouts: Sequence[Trajectory]
    rewards: Sequence[float]
    past: Mapping[str, Trajectory]


def train(
    policy: Policy,
    task: Task,
    experience: ExperienceConfig,
    loss: LossSettings,
    loop: Loop,
    parts: Parts | None = None,
) -> Iterator[dict[str, float]]:
    """The algorithm, on the policy's model in place. Yields the metrics of each step, and of step 0 before any."""
    torch.manual_seed(loop.seed)
    parts, rng = parts or Parts(ExperiencePool(experience)), np.random.default_rng(loop.seed)
    pool = parts.pool
    selector = TrajectorySelector(experience.exp_metric, experience.exp_select_mode)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=loop.lr)
    order = epochs(task.train, pool, loop.questions if experience.experience_skip_retired else None, rng)
    mixing, generated = False, 0
    yield {"step": 0, "generated": 0, "test": accuracy(policy, task, task.test)}
    for step in range(1, loop.steps + 1):
        # 1. Questions: of medium difficulty from the pool, the others fresh. K - 1 rollouts where one is replayed.
        replayed = pool.choose(int(experience.experience_ratio * loop.questions), rng) if mixing else []
        fresh = take(order, loop.questions - len(replayed), replayed)
        counts = [experience.rollout_n - 1] * len(replayed) + [experience.rollout_n] * len(fresh)
        asked = [question for question, n in zip(replayed + fresh, counts, strict=True) for _ in range(n)]
        rollouts = policy.sample(asked, step)
        rewards = [task.reward(q, policy.decode(one)) for q, one in zip(asked, rollouts, strict=True)]

        # 2. Trajectories: of each replayed question the one the policy of now is surest of.
        candidates = {question: pool.candidates(question) for question in replayed}
        past = choose(policy, candidates, experience.exp_metric, selector, rng)
        step_rows = Rows(asked, rollouts, rewards, past)

        # 3. The pool observes what is fresh, once enough is solved (delayed start).
        mixing |= experience.experience and float(np.mean(rewards)) > experience.experience_start_sratio
        for question in replayed + fresh if mixing else []:
            mine = [i for i, other in enumerate(asked) if other == question]
            solved = tuple(rollouts[i] for i in mine if rewards[i])
            pool.observe(RolloutGroup(question, len(mine), solved, replayed=int(question in past)))
        in_pool = pool.end_step(step, {})

        # 4. One update on groups of one replayed and K - 1 fresh rollouts.
        value, metrics = parts.objective(policy, step_rows, experience, loss)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()

        generated += sum(len(one) for one in rollouts)
        ages = [step - one.step for one in past.values()]
        tested = step % loop.test_every == 0 or step == loop.steps
        yield {
            "step": step,
            "generated": generated,
            "fresh_score": float(np.mean(rewards)),
            "replayed": len(past),
            "replay_age": float(np.mean(ages)) if ages else 0.0,
            "ratio_mean": float(metrics["replayed_ratio_mean"]),
            "pool_trajectories": in_pool["pool_trajectories"],
            "retired_questions": in_pool["retired_questions"],
            **({"test": accuracy(policy, task, task.test)} if tested else {}),
        }


def objective(
    policy: Policy, rows: Rows, experience: ExperienceConfig, loss: LossSettings
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The mixed-policy loss (equation 4) of a step's groups, and its metrics."""
    now = policy.look([*zip(rows.asked, rows.rollouts, strict=True), *rows.past.items()])
    fresh = len(rows.rollouts)
    batch = {
        "log_prob": now.log_prob,
        "old_log_prob": now.past if experience.exp_is_correct else now.log_prob.detach(),
        "response_mask": now.mask,
        "group": [*rows.asked, *rows.past],
        "is_replayed": torch.arange(len(now.log_prob)) >= fresh,
    }
    rewards = torch.tensor([*rows.rewards, *[1.0] * len(rows.past)])
    return compute_grpo_loss(batch, rewards, length=policy.max_tokens, settings=loss)


@dataclass(frozen=True)
class Parts:
    """What a study may exchange: the pool, and the objective of a step."""

    pool: ExperiencePool
    objective: Callable[[Policy, Rows, ExperienceConfig, LossSettings], tuple[Tensor, Mapping[str, Tensor]]] = objective


def epochs(train: Sequence[str], pool: ExperiencePool, batch: int | None, rng: np.random.Generator) -> Iterator[str]:
    """The questions epoch after epoch, shuffled; given a batch, without those retired before while a batch remains."""
    skipped: frozenset[str] = frozenset()
    while True:
        yield from (question for question in rng.permutation(train).tolist() if question not in skipped)
        if batch is not None and len(train) - len(pool.retired) >= batch:
            skipped = frozenset(pool.retired)


def take(order: Iterator[str], number: int, barred: Sequence[str]) -> list[str]:
    """The next questions in order, none twice and none that is barred."""
    taken: list[str] = []
    while len(taken) < number:
        question = next(order)
        if question not in taken and question not in barred:
            taken.append(question)
    return taken


@torch.no_grad()
def choose(
    policy: Policy,
    candidates: Mapping[str, Sequence[Trajectory]],
    metric: Metric,
    selector: TrajectorySelector,
    rng: np.random.Generator,
) -> dict[str, Trajectory]:
    """Each question's trajectory with the lowest entropy under the policy of now, in one pass over all candidates."""
    rows = [(question, one) for question, found in candidates.items() for one in found]
    if not rows:
        return {}
    now = policy.look(rows)
    perplexities = (-(now.log_prob * now.mask).sum(1) / now.mask.sum(1)).exp()
    scores = iter((perplexities if metric == "ppl" else now.entropy).tolist())
    return {q: found[selector.choose([next(scores) for _ in found], rng)] for q, found in candidates.items()}


def main() -> None:
    """Train, print a line a step, write curve.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("outputs/minimal_loop"))
    parser.add_argument("overrides", nargs="*", help="key=value")
    arguments = parser.parse_intermixed_args()
    try:
        chosen = settings(arguments.overrides)
    except ValueError as error:
        parser.error(str(error))
    arguments.output.mkdir(parents=True, exist_ok=True)
    curve = []
    for row in train(*five_numbers(), *chosen):
        curve.append(row)
        print("  ".join(f"{name} {value:.6g}" for name, value in row.items()), flush=True)
    draw(curve, arguments.output / "curve.png")
    print(f"curve in {arguments.output / 'curve.png'}")


if __name__ == "__main__":
    main()
