"""How many questions with a stored success can be drawn, by the rule that files them, in a simulated world.

    python lab/benchmarks/drawable.py [--questions 45000] [--means 3.6 17 50] [--steps 200 500] [--seeds 3]

128 questions a step, K = 8, replay from the first step on; the pass rates are drawn from Beta(.15, b) with the
given mean in per cent and do not change. By `released`, the rule of Algorithm 1 and of the released code, a stored
success stays drawable. By `fresh`, the default up to 0.2.0, a question whose rollouts all fail is filed under 0 and out
of reach until one succeeds: with a weak model that is most of them.
"""

from __future__ import annotations

import argparse

import benchmark_folders  # noqa: F401
import numpy as np
from common import Figures, at_least, machine, parser, report, spread
from simulate import BATCH, K, World, simulate

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay

SHAPE = 0.15  # of the beta distribution: most questions are far from its mean


class Still(World):
    """A world in which nothing is learnt."""

    learned = visit = 0.0


def main() -> None:
    """Simulate both rules and print a table."""
    cli = parser(__doc__)
    cli.add_argument("--questions", type=at_least(BATCH), default=45_000)
    cli.add_argument("--means", type=float, nargs="+", default=[3.6, 17, 50], help="mean pass rates, per cent")
    cli.add_argument("--steps", type=at_least(1), nargs="+", default=[200, 500])
    cli.add_argument("--seeds", type=at_least(1), default=3)
    options = cli.parse_args()
    figures: Figures = {}
    for mean in options.means:
        for rule in ("fresh", "released"):
            runs = [counts(rule, mean / 100, seed, options) for seed in range(options.seeds)]
            for step in options.steps:
                for what in runs[0][step]:
                    name = f"mean pass rate {mean:g} %, step {step}, {rule}: {what}"
                    figures[name] = spread([run[step][what] for run in runs])
    report(f"drawable, {options.questions:,} questions", figures, machine("numpy"), options)


def counts(rule: str, mean: float, seed: int, options: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Step -> name -> figure of one run."""
    rng = np.random.default_rng(seed)
    rates = rng.beta(SHAPE, SHAPE * (1 - mean) / mean, options.questions)
    world = Still(np.clip(rates, 1e-9, 1 - 1e-9), tokens=8, rng=rng)
    config = ExperienceConfig(rollout_n=K, experience_start_sratio=0, exp_seed=seed, exp_difficulty=rule)
    metrics = simulate(ExperienceReplay(config, world.names), world, max(options.steps)).metrics
    found = {}
    for step in options.steps:
        row = metrics[step - 1]
        found[step] = {
            "questions with a success": row["pool_questions"],
            "drawable": row["eligible_questions"],
            "drawable, share": row["eligible_questions"] / max(row["pool_questions"], 1),
            "drawn in the step: hard": row["drawn_hard"],
            "drawn in the step: medium": row["drawn_medium"],
            "drawn in the step: easy": row["drawn_easy"],
        }
    return found


if __name__ == "__main__":
    main()
