"""The busiest rank's share of a step's candidates relative to the mean: in the pool's order, and balanced.

    python lab/benchmarks/candidate_balance.py [--steps 50] [--json FILE]

Lengths are simulated: 64 replayed questions (half of 128) with 2 to 8 candidates each; a question's answers are about
equally long (log-normal, median 1,800 tokens, sigma .6 between questions and .25 within, at most 8,192), prompts have
60 to 300 tokens. The balancing is that of exgrpo.on_verl.complete. At 1.00 all ranks have the same share;
otherwise all wait for the busiest.
"""

from __future__ import annotations

import time

import benchmark_folders  # noqa: F401
import numpy as np
import torch
from common import Figures, at_least, machine, parser, report, spread
from verl.utils.seqlen_balancing import calculate_workload

from exgrpo.on_verl.complete import balanced_order

QUESTIONS, LONGEST = 64, 8192


def main() -> None:
    """Deal the candidates of some steps to 8 and to 64 ranks."""
    cli = parser(__doc__)
    cli.add_argument("--steps", type=at_least(1), default=50)
    options = cli.parse_args()
    steps = [lengths(np.random.default_rng(seed)) for seed in range(options.steps)]
    figures: Figures = {"candidates a step": spread([len(step) for step in steps])}
    for ranks in (8, 64):
        before, after, seconds = [], [], []
        for step in steps:
            started = time.perf_counter()
            order = balanced_order(step, ranks, ranks)
            seconds.append(time.perf_counter() - started)
            in_order = [*range(len(step)), *[0] * (-len(step) % ranks)]
            before.append([busiest(work, in_order, ranks) for work in loads(step)])
            after.append([busiest(work, order, ranks) for work in loads(step)])
        for column, quantity in enumerate(("tokens", "work")):
            name = f"{ranks} ranks: busiest / mean, {quantity}"
            figures[f"{name}, in order"] = spread([shares[column] for shares in before])
            figures[f"{name}, balanced_order"] = spread([shares[column] for shares in after])
        figures[f"{ranks} ranks: milliseconds of the driver to deal"] = spread([1000 * second for second in seconds])
    report("candidates over ranks", figures, machine("verl"), options)


def lengths(rng: np.random.Generator) -> list[int]:
    """Tokens of each candidate with its prompt, question by question."""
    tokens: list[int] = []
    for _ in range(QUESTIONS):
        prompt, typical = int(rng.integers(60, 301)), 1800 * np.exp(0.6 * rng.standard_normal())
        answers = typical * np.exp(0.25 * rng.standard_normal(int(rng.integers(2, 9))))
        tokens += [prompt + int(answer) for answer in np.clip(answers, 16, LONGEST)]
    return tokens


def loads(step: list[int]) -> tuple[list[int], list[int]]:
    """Each candidate's tokens, and verl's estimate of its work."""
    return step, calculate_workload(torch.tensor(step)).tolist()


def busiest(load: list[int], order: list[int], ranks: int) -> float:
    """The largest load of a rank divided by the mean load; repeated rows do not count in the mean."""
    share = len(order) // ranks
    sums = [sum(load[row] for row in order[rank * share : (rank + 1) * share]) for rank in range(ranks)]
    return max(sums) / (sum(load) / ranks)


if __name__ == "__main__":
    main()
