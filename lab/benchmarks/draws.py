"""Compare what the keys of replay draw over a whole training, in the simulated world of simulate.py.

    python lab/benchmarks/draws.py --pass_rates FILE.parquet [--harder 0 3] [--steps 700] [--seeds 3] [--json FILE]

For each difficulty and each variant: the share of fresh, of replayed and of all groups that have an advantage (rewards
that differ), the rollouts generated as a share of those without replay, ages of what is replayed, questions drawn at
least once, and retirements. A stored group counts as one with an advantage, a rescued one too. The world does not learn
from what is drawn, except that a visit makes a question a bit easier: the figures say what each rule offers to the
update, not what the update makes of it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import benchmark_folders  # noqa: F401
import numpy as np
from common import Figures, at_least, machine, parser, report, spread
from simulate import BATCH, K, Outcome, Run, World, pass_rates, simulate

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay

VARIANTS: dict[str, dict[str, Any]] = {
    "on-policy": {"experience": False},
    "retirement alone": {"experience_ratio": 0.0},
    "as published": {},
    "ratio .25": {"experience_ratio": 0.25},
    "ratio .75": {"experience_ratio": 0.75},
    "sigma 2": {"exp_bucket_sigma": 2.0},
    "mean .25": {"exp_bucket_mean": 0.25},
    "uniform over questions": {"exp_bucket_manager": False},
    "never retired": {"exp_retirement": "never"},
    "age at most 50": {"experience_max_age": 50},
    "rescue": {"exp_rescue": True},
    "whole groups": {"exp_unit": "group"},
    "whole groups, ratio .75": {"exp_unit": "group", "experience_ratio": 0.75},
}


def main() -> None:
    """Run all variants and print a table for each difficulty."""
    cli = parser(__doc__)
    cli.add_argument("--pass_rates", type=Path, required=True, help="parquet with extra_info.offline_pass_rate")
    cli.add_argument("--harder", type=float, nargs="+", default=[0.0, 3.0], help="logits taken from each pass rate")
    cli.add_argument("--questions", type=at_least(BATCH), default=46_000)
    cli.add_argument("--steps", type=at_least(10), default=700)
    cli.add_argument("--seeds", type=at_least(1), default=3)
    options = cli.parse_args()
    figures: Figures = {}
    for harder in options.harder:
        for name, keys in VARIANTS.items():
            runs = [run_of(keys, harder, seed, options) for seed in range(options.seeds)]
            for what in runs[0]:
                figures[f"{harder:g} logits harder, {name}: {what}"] = spread([run[what] for run in runs])
    report(f"draws, {options.questions:,} questions, {options.steps} steps", figures, machine("numpy"), options)


def run_of(keys: dict[str, Any], harder: float, seed: int, options: Any) -> dict[str, float]:
    """What one variant drew in one world."""
    rng = np.random.default_rng(seed)
    rates = pass_rates(options.pass_rates, options.questions, rng)
    world = World(1 / (1 + (1 - rates) / rates * math.exp(harder)), tokens=8, rng=rng)
    config = ExperienceConfig(rollout_n=K, experience_start_sratio=0, exp_seed=seed, **keys)
    run = simulate(ExperienceReplay(config, world.names), world, options.steps)
    return drawn(run)


def drawn(run: Run) -> dict[str, float]:
    """name -> figure of one run."""
    groups = [group for groups in run.groups for group in groups]
    fresh = [group for group in groups if not group.replayed]
    replayed = [group for group in groups if group.replayed]
    stored = [question for questions in run.stored for question in questions]
    rows = len(groups) + len(stored)
    taught = sum(map(_has_advantage, groups)) + sum(run.rescued) + len(stored)
    visits = np.unique([group.question for group in replayed] + stored, return_counts=True)[1]
    return {
        "steps until every question is retired": float(len(run.groups)),
        "pass rate of fresh groups": float(np.mean([group.solved / group.size for group in fresh])),
        "groups with an advantage, fresh": float(np.mean([0 < group.solved < group.size for group in fresh])),
        "groups with an advantage, replayed": _mean([group.solved < group.size for group in replayed]),
        "groups with an advantage, all": taught / rows,
        "groups with an advantage for 1,000 rollouts": 1000 * taught / sum(group.size for group in groups),
        "replayed groups whose fresh rollouts all fail": _mean([group.solved == 0 for group in replayed]),
        "rollouts generated / on-policy": sum(group.size for group in groups) / (rows * K),
        "age of the replayed, median of the steps": float(np.median(run.ages)),
        "replays of a replayed question, mean": float(visits.mean()) if len(visits) else 0.0,
        "replays of a replayed question, most": float(visits.max(initial=0)),
        "questions replayed": float(len(visits)),
        "questions retired": run.metrics[-1]["retired_questions"],
    }


def _has_advantage(group: Outcome) -> bool:
    return 0 < group.solved + group.replayed < group.size + group.replayed


def _mean(values: list[bool]) -> float:
    return float(np.mean(values)) if values else math.nan


if __name__ == "__main__":
    main()
