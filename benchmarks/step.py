"""A complete training step with replay against the same step without it, phase by phase, in one
run.

    python benchmarks/step.py [--pairs 30] [--warmup 12] [--output DIR] [--json FILE]
        [key=value ...]
    python benchmarks/step.py --model MODEL_FOLDER --pairs 5 --warmup 3 --limit_s 1800  # SmolLM2's
    python benchmarks/step.py --mode lora --pairs 12  # with the settings of a row of modes.py
    python benchmarks/step.py --stack one_gpu  # on a GPU, not on the CPU

After the warm-up, which fills the pool, each pair of steps has the same questions, once with replay
and once with verl's own GRPO (benchmarks/paired_trainer.py), in alternating order. The learning
rate is 0, so that policy and lengths do not change. The loss is exgrpo's in both:
lab/benchmarks/loss.py compares it with verl's.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import modes
import numpy as np
import runs
from common import (
    ROOT,
    STACKS,
    Figures,
    OutOfTime,
    at_least,
    engine_package,
    environment_of,
    machine,
    parser,
    ratios,
    refuse,
    report,
    spread,
    training,
)

Step = dict[str, float]
# phase -> its metric; old log-probs and bookkeeping are separated below
TIMERS = {
    "generation": "gen",
    "advantage": "adv",
    "update": "update_actor",
    "weight sync": "update_weights",
}
# a step of these is a draw, its rollouts and an update, so that two steps can have the same
# questions
MODES = ("sync", "tools", "lora", "rollout_correction", "rloo", "gspo", "partial_rewards")


def main() -> None:
    """Run the training, then split its steps into phases."""
    cli = parser(__doc__)
    cli.add_argument("--stack", choices=STACKS, default="cpu")
    cli.add_argument("--model", default=runs.QUICKSTART, help="quickstart, or a model's folder")
    cli.add_argument(
        "--mode",
        choices=MODES,
        default="sync",
        help="of modes.py; the others' steps overlap or refill",
    )
    cli.add_argument("--pairs", type=at_least(1), default=30)
    cli.add_argument(
        "--warmup", type=at_least(1), default=12, help="steps with replay before the first pair"
    )
    cli.add_argument(
        "--candidates", type=at_least(1), default=8, help="experience_max_per_question"
    )
    cli.add_argument(
        "--response_length", type=at_least(8), default=48, help="data.max_response_length"
    )
    cli.add_argument(
        "--ranks", type=at_least(1), default=1, help="FSDP ranks, each with its own vLLM"
    )
    cli.add_argument(
        "--limit_s",
        type=at_least(1),
        default=1500,
        help="time limit; the pairs taken until then count",
    )
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-step")
    cli.add_argument("overrides", nargs="*", help="Hydra overrides, key=value")
    options = cli.parse_intermixed_args()
    for override in options.overrides:
        if "=" not in override:
            refuse(f"{override}: must be key=value")
    facts = machine("verl", "torch", "ray", engine_package(options.stack))
    output = options.output.resolve()
    file = output / "metrics.jsonl"
    file.unlink(missing_ok=True)
    arguments = command(options, output)
    print(f"{options.warmup} + 2 x {options.pairs} steps; log in {output}/train.log", flush=True)
    environment = environment_of(options.stack) | {"VERL_FILE_LOGGER_PATH": str(file)}
    environment["EXGRPO_BENCHMARK"] = str(os.getpid())  # paired_trainer.ROOT
    try:
        training(["-m", "paired_trainer", *arguments], output, options.limit_s, environment)
    except RuntimeError as error:
        if not (isinstance(error, OutOfTime) and finished_pairs(file, options.warmup)):
            raise SystemExit(str(error)) from error
        print(
            f"{str(error).splitlines()[-1]}; the figures are of the pairs that are finished",
            file=sys.stderr,
        )
    steps = [divided(step) for step in finished_pairs(file, options.warmup)]
    report(
        f"a step of {Path(options.model).name}, {options.mode}, {options.pairs} pairs",
        compare(steps),
        facts,
        options,
    )


def finished_pairs(file: Path, warmup: int) -> list[Step]:
    """The metrics of both steps of each pair that is finished, in order."""
    steps = runs.steps(file)[warmup:] if file.is_file() else []
    return steps[: len(steps) // 2 * 2]


def command(options: argparse.Namespace, output: Path) -> list[str]:
    """The Hydra overrides of the training."""
    ranks = [
        f"trainer.n_gpus_per_node={options.ranks}",
        f"ray_kwargs.ray_init.num_gpus={options.ranks}",
        f"ray_kwargs.ray_init.num_cpus={8 + 4 * options.ranks}",
    ]
    return [
        *runs.settings(options.model, output, options.stack),
        f"+paired_warmup={options.warmup}",
        f"trainer.total_training_steps={options.warmup + 2 * options.pairs}",
        f"trainer.experience_max_per_question={options.candidates}",
        f"data.max_response_length={options.response_length}",
        f"actor_rollout_ref.rollout.max_model_len={max(128, 128 + options.response_length)}",
        "trainer.experience_start_sratio=0",
        *modes.own(options.mode, output),
        "actor_rollout_ref.actor.optim.lr=0",
        *(ranks if options.ranks > 1 else []),
        *options.overrides,
    ]


def divided(step: Step) -> Step:
    """The seconds of a step by phase, and the facts about it that the comparison needs."""
    phases = {phase: step[f"timing_s/{timer}"] for phase, timer in TIMERS.items()}
    after, draw = step["paired/after_s"], step.get("paired/draw_s", 0.0)
    phases["candidate scoring"] = step.get("paired/scoring_s", 0.0)
    phases["old log-probs"] = step["timing_s/old_log_prob"] - after
    phases["bookkeeping"] = step.get("experience/seconds", 0.0) - phases["candidate scoring"]
    parts = sum(phases.values())
    phases["whole step"] = (
        step["timing_s/step"] - draw
    )  # one draw serves both steps of a pair; it is added below
    phases["rest"] = phases["whole step"] - parts
    facts = {
        name.removeprefix("paired/"): value
        for name, value in step.items()
        if name.startswith("paired/")
    }
    return phases | facts | {"candidates": step.get("experience/candidates_scored", 0.0)}


def compare(steps: list[Step]) -> Figures:
    """name -> figure, over the pairs."""
    pairs = list(zip(steps[::2], steps[1::2], strict=True))
    replayed = [dict(first if first["replay"] else second) for first, second in pairs]
    plain = [second if first["replay"] else first for first, second in pairs]
    for step, (first, _) in zip(replayed, pairs, strict=True):
        step["bookkeeping"] += first["draw_s"]
        step["whole step"] += first["draw_s"]
    figures: Figures = {"pairs": len(pairs)}
    order = [
        "whole step",
        "generation",
        "old log-probs",
        "advantage",
        "update",
        "weight sync",
        "rest",
    ]
    for phase in [*order, "candidate scoring", "bookkeeping"]:
        figures[f"{phase}, s: replayed"] = spread(column(replayed, phase))
        if phase in order:
            figures[f"{phase}, s: on-policy"] = spread(column(plain, phase))
    these, those = column(replayed, "whole step"), column(plain, "whole step")
    own = [step["candidate scoring"] + step["bookkeeping"] for step in replayed]
    without = [
        [step["whole step"] - step["generation"] for step in kind] for kind in (replayed, plain)
    ]
    return figures | {
        "replayed / on-policy, medians": float(np.median(these) / np.median(those)),
        "replayed / on-policy, of pairs": ratios(these, those),
        "replayed / on-policy, median of pairs, 95 % interval": interval(these, those),
        "replayed / on-policy, of pairs, all but generation": ratios(*without),
        "scoring and bookkeeping / on-policy step": ratios(own, those),
        "CPU s of all processes: replayed": spread(column(replayed, "cpu_s")),
        "CPU s of all processes: on-policy": spread(column(plain, "cpu_s")),
        "CPU s, replayed / on-policy, median of pairs, 95 % interval": interval(
            column(replayed, "cpu_s"), column(plain, "cpu_s")
        ),
        **traffic(replayed, plain),
    }


def traffic(replayed: list[Step], plain: list[Step]) -> Figures:
    """Calls of the queue, and the time per token in the two passes of the model."""
    scored = [step for step in replayed if step.get("candidates_tokens")]
    per_token = {
        "scoring, us a token of a candidate": [
            1e6 * step["candidates_s"] / step["candidates_tokens"] for step in scored
        ],
        "old log-probs, us a token": [
            1e6 * step["rows_s"] / step["rows_tokens"] for step in replayed
        ],
    }
    return {
        "candidates scored a step": spread(column(replayed, "candidates")),
        "tokens scored a step": spread([step.get("candidates_tokens", 0.0) for step in replayed]),
        **{name: spread(values) for name, values in per_token.items() if values},
        "the model's pass over candidates, s": spread(
            [step.get("candidates_s", 0.0) for step in replayed]
        ),
        "queue calls of the driver: replayed": spread(column(replayed, "queue_calls")),
        "queue calls of the driver: on-policy": spread(column(plain, "queue_calls")),
        "queue calls, s: replayed": spread(column(replayed, "queue_s")),
        "queue calls, s: on-policy": spread(column(plain, "queue_s")),
    }


def column(steps: list[Step], name: str) -> list[float]:
    """One value of each step."""
    return [step[name] for step in steps]


def interval(these: list[float], those: list[float]) -> list[float]:
    """Median of the paired ratios and its 95 % interval, by bootstrap over pairs."""
    of_pairs = np.array(these) / np.array(those)
    drawn = np.random.default_rng(0).choice(of_pairs, (2000, len(of_pairs)))
    bounds = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return [float(np.median(of_pairs)), *bounds.tolist()]


if __name__ == "__main__":
    main()
