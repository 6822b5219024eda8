"""On-policy GRPO, ExGRPO and group replay through verl's trainer, where success is rare.

    python lab/studies/trainer_study.py [TASK ...] [--seeds 3] [--runs N] [--output outputs/rare-trainer]

Bases, questions, rewards, budgets of generated tokens and the settings that won on caesar are those of equal_grids.py,
which trains without a trainer; here verl, Ray, vLLM and FSDP2 do, on the CPU. A run is tested eight times and more on
the task's held-out questions and ends with the first test after its budget, or earlier if every question is retired;
its last accuracy then stands for the rest. Each run is a file: a stopped study goes on with the same command; --runs
says how many to add, 0 only prints the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import study_folders
from comparison import estimate, marked
from equal_grids import FILE, KEYS, overrides
from rare_tasks import BASES, RARE_TASKS, RareTask
from run_measures import ANSWERS, area
from study_runs import Point, Results, Run

from exgrpo.overrides import override
from exgrpo.saved import durable
from exgrpo_data.verl_rows import make_row, write_parquet
from exgrpo_tools.run_figures import generated_tokens
from exgrpo_tools.run_files import of_lines

HERE = Path(__file__).resolve().parent
GUARDED = study_folders.SCRIPTS / "guarded"

TASKS = ("caesar", "backward")
METHODS = ("on-policy", "ExGRPO", "past groups for dead")
ROLLOUTS = 8  # of a question, as in the study
LIMIT_S = 3600
TESTS = 8  # at least
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
# key of the study's loop -> verl's; the rest of them say how long a run is
LOOP = {"loop.lr": f"{ACTOR}.optim.lr", "loop.questions": "data.train_batch_size", "loop.reuse": f"{ACTOR}.ppo_epochs"}
SETTINGS = (
    "stack=cpu",
    "trainer.rollout_poll_interval=0.05",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "data.max_prompt_length=24",
    f"{ROLLOUT}.n={ROLLOUTS}",
    f"{ROLLOUT}.max_model_len=128",
    f"{ROLLOUT}.val_kwargs.temperature=1.0",
    f"{ROLLOUT}.val_kwargs.do_sample=True",
    f"{ROLLOUT}.val_kwargs.n={ANSWERS}",
    f"{ACTOR}.ppo_max_token_len_per_gpu=8192",
    override("reward.custom_reward_function.path", HERE / "rare_reward.py"),
    "trainer.logger=[console,file]",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
    "trainer.total_epochs=100000",
)
Figures = dict[str, Any]
METRICS = "metrics-0000.jsonl"


def verl_keys(study: Sequence[str]) -> list[str]:
    """The Hydra overrides of a method's settings in the study; how long a run is, is left to `perform`."""
    found = dict(setting.split("=", 1) for setting in study)
    keys = {LOOP[key]: value for key, value in found.items() if key in LOOP}
    keys[f"{ACTOR}.ppo_mini_batch_size"] = found["loop.questions"]
    keys |= {key: value for key, value in found.items() if key.startswith("trainer.")}
    keys |= {f"{ACTOR}.{key}": value for key, value in found.items() if key.startswith("policy_loss.")}
    return [f"{key}={value}" for key, value in keys.items()]


def won() -> dict[str, Point]:
    """Method -> the point that won on caesar."""
    return {run.method: run.point for run in Results(FILE).found if run.task == TASKS[0] and run.is_reported}


def folder_name(run: Run) -> str:
    return f"{run.task}-{run.method.replace(',', '').replace(' ', '-')}-{run.seed}"


def write_questions(task: RareTask, folder: Path) -> None:
    """train.parquet and test.parquet of a task; the ground truth is the question itself."""
    train, test = task.split()
    for split, questions in (("train", train), ("test", test)):
        rows = [
            make_row(question, question, index, data_source=task.name, split=split, system=None)
            for index, question in enumerate(questions)
        ]
        write_parquet(rows, folder / f"{split}.parquet")


def perform(run: Run, folder: Path) -> Figures:
    """One training to the budget, and what it measured."""
    task = RARE_TASKS[run.task]
    write_questions(task, folder / "data")
    every = max(1, task.budget // TESTS // (int(run.point.fresh) * ROLLOUTS * task.max_tokens))
    arguments = [
        *SETTINGS,
        override("data.train_files", folder / "data" / "train.parquet"),
        override("data.val_files", folder / "data" / "test.parquet"),
        f"data.max_response_length={task.max_tokens}",
        override("actor_rollout_ref.model.path", BASES / task.name),
        override("trainer.default_local_dir", folder / "checkpoints"),
        f"trainer.test_freq={every}",
        f"trainer.total_training_steps={4 * every * TESTS}",
        *(f"data.seed={run.seed}", f"{ROLLOUT}.seed={run.seed}", f"trainer.exp_seed={run.seed}"),
        *verl_keys(overrides(run, KEYS[run.method])),
    ]
    train_to(task, arguments, folder)
    return figures(task, load(folder / METRICS))


def train_to(task: RareTask, arguments: Sequence[str], folder: Path) -> None:
    """Train until a test comes after the last token of the budget."""
    metrics = folder / METRICS
    metrics.unlink(missing_ok=True)
    environment = os.environ | {
        "VERL_PLATFORM": "cpu",
        "HF_HUB_OFFLINE": "1",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(study_folders.FOLDERS),  # for rare_reward.py, which verl imports
    }
    command = [sys.executable, str(GUARDED), str(folder), sys.executable, "-m", "exgrpo.main_mix_ppo"]
    started = time.monotonic()
    with open(folder / "train.log", "w") as log:
        process = subprocess.Popen([*command, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        while (code := process.poll()) is None and time.monotonic() - started < LIMIT_S:
            time.sleep(1)
            if metrics.exists() and (curve := curve_of(task, load(metrics))) and curve[-1]["generated"] >= task.budget:
                return
    finally:
        process.terminate()
        process.wait()
    if code != 0:  # with 0 every question is retired: the policy stays what it is
        sys.exit(
            f"{folder}/train.log: {'no end in an hour' if code is None else f'exit code {code}'} before the budget"
        )


def load(metrics: Path) -> dict[int, Figures]:
    """Step -> metrics, as far as they are written."""
    return dict(of_lines(metrics))


def curve_of(task: RareTask, steps: Mapping[int, Figures]) -> list[Figures]:
    """Generated tokens and accuracy at each test."""
    curve, generated = [], 0.0
    for step, metrics in steps.items():
        generated += generated_tokens(metrics) if "timing_s/step" in metrics else 0.0
        tested = metrics.get(f"val-core/{task.name}/acc/mean@{ANSWERS}")
        if tested is not None:
            curve.append({"step": step, "generated": generated, "test": tested})
    return curve


def figures(task: RareTask, steps: Mapping[int, Figures]) -> Figures:
    """What the tables need of a run."""
    trained = [metrics for metrics in steps.values() if "timing_s/step" in metrics]
    tokens = sum(generated_tokens(metrics) for metrics in trained)
    return {
        "curve": curve_of(task, steps),
        "steps": len(trained),
        "step_s": statistics.median(metrics["timing_s/step"] for metrics in trained),
        "generation_s": statistics.median(metrics["timing_s/gen"] for metrics in trained),
        "tokens_a_step": tokens / len(trained),
        "trained_s": sum(metrics["timing_s/step"] for metrics in trained) * min(1.0, task.budget / tokens),
    }


def table(found: Mapping[tuple[str, str, int], Figures], seeds: Sequence[int]) -> str:
    """In Markdown, of the seeds that all methods of a task have."""
    lines = [
        "| task | method | seeds | mean over the run | to on-policy | end | steps | tokens a step | s a step | of it "
        "generation | minutes to the budget |",
        "| --- | --- | ---: | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in TASKS:
        common = [seed for seed in seeds if all((name, method, seed) in found for method in METHODS)]
        budget = RARE_TASKS[name].budget
        first = METHODS[0]
        for method in METHODS if common else ():
            runs = [found[name, method, seed] for seed in common]
            areas = [area(each["curve"], budget, "test") for each in runs]
            plain = [area(found[name, first, seed]["curve"], budget, "test") for seed in common]
            beside = "" if method == first else marked(estimate([a - b for a, b in zip(areas, plain, strict=True)]))
            ends = estimate([each["curve"][-1]["test"] for each in runs])
            cells = [name, method, str(len(common)), str(estimate(areas)), beside, str(ends)]
            for key, form in (("steps", ".0f"), ("tokens_a_step", ".0f"), ("step_s", ".2f"), ("generation_s", ".2f")):
                cells.append(format(statistics.mean(each[key] for each in runs), form))
            cells.append(f"{statistics.mean(each['trained_s'] for each in runs) / 60:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Add runs, then print the table of all that there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=3, help="0..N-1 (default 3)")
    parser.add_argument("--runs", type=int, default=10**6, help="add at most as many")
    parser.add_argument("--output", type=Path, default=Path("outputs/rare-trainer"))
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.task if name not in TASKS]:
        parser.error(f"{unknown[0]}: must be one of {', '.join(TASKS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a training ends with the study
    output, points = arguments.output.resolve(), won()
    every = [
        Run(name, method, points[method], seed)
        for seed in range(arguments.seeds)
        for name in TASKS
        for method in METHODS
    ]
    file = {run: output / folder_name(run) / "figures.json" for run in every}
    missing = [run for run in every if run.task in arguments.task and not file[run].exists()]
    for run in missing[: arguments.runs]:
        print(f"{run.task}, {run.method}, seed {run.seed}", flush=True)
        durable.replace_file(file[run], json.dumps(perform(run, file[run].parent)) + "\n")
    found = {
        (run.task, run.method, run.seed): json.loads(path.read_text()) for run, path in file.items() if path.exists()
    }
    print(table(found, range(10**3)))


if __name__ == "__main__":
    main()
