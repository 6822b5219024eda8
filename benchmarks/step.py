"""A whole training step with replay against the same step without it, phase by phase, in one run.

    python benchmarks/step.py [--pairs 30] [--warmup 12] [--output DIR] [--json FILE] [key=value ...]
    python benchmarks/step.py --model MODEL_FOLDER --pairs 5 --warmup 3 --limit_s 1800         with SmolLM2's settings
    python benchmarks/step.py --stack one_gpu                                                  on a GPU, not on the CPU

After the warm-up, which fills the pool, each pair of steps has the same questions, once with replay and once as verl's
own GRPO does it (benchmarks/paired_trainer.py), every other pair the other way round. The learning rate is 0, so that
policy and lengths stay what they are. The loss is exgrpo's in both: benchmarks/loss.py compares it with verl's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import runs
from common import (
    ROOT,
    STACKS,
    Figures,
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
# phase -> of which metric; old log-probs and bookkeeping are parted below
TIMERS = {"generation": "gen", "advantage": "adv", "update": "update_actor", "weight sync": "update_weights"}


def main() -> None:
    """Run the training, then divide its steps."""
    made = parser(__doc__)
    made.add_argument("--stack", choices=STACKS, default="cpu")
    made.add_argument("--model", default=runs.QUICKSTART, help="quickstart, or a model's folder")
    made.add_argument("--pairs", type=at_least(1), default=30)
    made.add_argument("--warmup", type=at_least(1), default=12, help="steps with replay before the first pair")
    made.add_argument("--candidates", type=at_least(1), default=8, help="experience_max_per_question")
    made.add_argument("--response_length", type=at_least(8), default=48, help="data.max_response_length")
    made.add_argument("--ranks", type=at_least(1), default=1, help="FSDP ranks, each with a vLLM of its own")
    made.add_argument("--limit_s", type=at_least(1), default=1500, help="the training is ended after so many seconds")
    made.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-step")
    made.add_argument("overrides", nargs="*", help="Hydra overrides, key=value")
    given = made.parse_intermixed_args()
    if bad := [override for override in given.overrides if "=" not in override]:
        refuse(f"{bad[0]}: must be key=value")
    facts = machine("verl", "torch", "ray", engine_package(given.stack))
    output = given.output.resolve()
    file = output / "metrics.jsonl"
    file.unlink(missing_ok=True)
    arguments = command(given, output)
    print(f"{given.warmup} + 2 x {given.pairs} steps; log in {output}/train.log", flush=True)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = environment_of(given.stack) | {"VERL_FILE_LOGGER_PATH": str(file), "PYTHONPATH": path}
    try:
        training(["-m", "benchmarks.paired_trainer", *arguments], output, given.limit_s, environment)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error
    steps = [divided(step) for step in runs.steps(file)[given.warmup :]]
    report(f"a step of {Path(given.model).name}, {given.pairs} pairs", compare(steps), facts, given)


def command(given: argparse.Namespace, output: Path) -> list[str]:
    """The Hydra overrides of the training."""
    ranks = [
        f"trainer.n_gpus_per_node={given.ranks}",
        f"ray_kwargs.ray_init.num_gpus={given.ranks}",
        f"ray_kwargs.ray_init.num_cpus={8 + 4 * given.ranks}",
    ]
    return [
        *runs.settings(given.model, output, given.stack),
        f"+paired_warmup={given.warmup}",
        f"trainer.total_training_steps={given.warmup + 2 * given.pairs}",
        f"trainer.experience_max_per_question={given.candidates}",
        f"data.max_response_length={given.response_length}",
        f"actor_rollout_ref.rollout.max_model_len={max(128, 128 + given.response_length)}",
        "trainer.experience_start_sratio=0",
        "actor_rollout_ref.actor.optim.lr=0",
        *(ranks if given.ranks > 1 else []),
        *given.overrides,
    ]


def divided(step: Step) -> Step:
    """The seconds of a step by phase, and the facts about it that the comparison wants."""
    phases = {phase: step[f"timing_s/{timer}"] for phase, timer in TIMERS.items()}
    after, draw = step["paired/after_s"], step.get("paired/draw_s", 0.0)
    phases["candidate scoring"] = step.get("paired/scoring_s", 0.0)
    phases["old log-probs"] = step["timing_s/old_log_prob"] - after
    phases["bookkeeping"] = step.get("experience/seconds", 0.0) - phases["candidate scoring"]
    phases["whole step"] = step["timing_s/step"] - draw  # one draw serves both steps of a pair; it is added below
    phases["rest"] = phases["whole step"] - sum(value for phase, value in phases.items() if phase != "whole step")
    facts = {name.removeprefix("paired/"): value for name, value in step.items() if name.startswith("paired/")}
    return phases | facts | {"candidates": step.get("experience/candidates_scored", 0.0)}


def compare(steps: list[Step]) -> Figures:
    """name -> figure, of the pairs."""
    pairs = list(zip(steps[::2], steps[1::2], strict=True))
    replayed = [dict(first if first["replay"] else second) for first, second in pairs]
    plain = [second if first["replay"] else first for first, second in pairs]
    for step, (first, _) in zip(replayed, pairs, strict=True):
        step["bookkeeping"] += first["draw_s"]
        step["whole step"] += first["draw_s"]
    figures: Figures = {}
    order = ["whole step", "generation", "old log-probs", "advantage", "update", "weight sync", "rest"]
    for phase in [*order, "candidate scoring", "bookkeeping"]:
        figures[f"{phase}, s: replayed"] = spread(column(replayed, phase))
        if phase in order:
            figures[f"{phase}, s: on-policy"] = spread(column(plain, phase))
    these, those = column(replayed, "whole step"), column(plain, "whole step")
    own = [step["candidate scoring"] + step["bookkeeping"] for step in replayed]
    without = [[step["whole step"] - step["generation"] for step in kind] for kind in (replayed, plain)]
    return figures | {
        "replayed / on-policy, medians": float(np.median(these) / np.median(those)),
        "replayed / on-policy, of pairs": ratios(these, those),
        "replayed / on-policy, median of pairs, 95 % interval": interval(these, those),
        "replayed / on-policy, of pairs, all but generation": ratios(*without),
        "scoring and bookkeeping / on-policy step": ratios(own, those),
        **traffic(replayed, plain),
    }


def traffic(replayed: list[Step], plain: list[Step]) -> Figures:
    """Calls of the queue, and what a token costs in the two passes of the model."""
    scored = [step for step in replayed if step.get("candidates_tokens")]
    per_token = {
        "scoring, us a token of a candidate": [1e6 * s["candidates_s"] / s["candidates_tokens"] for s in scored],
        "old log-probs, us a token": [1e6 * s["rows_s"] / s["rows_tokens"] for s in replayed],
    }
    return {
        "candidates scored a step": spread(column(replayed, "candidates")),
        "tokens scored a step": spread([step.get("candidates_tokens", 0.0) for step in replayed]),
        **{name: spread(values) for name, values in per_token.items() if values},
        "the model's pass over candidates, s": spread([step.get("candidates_s", 0.0) for step in replayed]),
        "queue calls of the driver: replayed": spread(column(replayed, "queue_calls")),
        "queue calls of the driver: on-policy": spread(column(plain, "queue_calls")),
        "queue calls, s: replayed": spread(column(replayed, "queue_s")),
        "queue calls, s: on-policy": spread(column(plain, "queue_s")),
    }


def column(steps: list[Step], name: str) -> list[float]:
    """One figure of each step."""
    return [step[name] for step in steps]


def interval(these: list[float], those: list[float]) -> list[float]:
    """Median of the paired ratios and its 95 % interval, by bootstrap over pairs."""
    of_pairs = np.array(these) / np.array(those)
    drawn = np.random.default_rng(0).choice(of_pairs, (2000, len(of_pairs)))
    bounds = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return [float(np.median(of_pairs)), *bounds.tolist()]


if __name__ == "__main__":
    main()
