"""Tuned on-policy GRPO, tuned ExGRPO and tuned group replay through verl's trainer, where success is rare.

    python exp_scripts/regime/trainer_study.py [TASK ...] [--seeds 3] [--runs N] [--output outputs/rare-trainer]

Bases, questions, rewards, budgets of generated tokens and the settings that won are those of study.py, which trains
without a trainer; here verl, Ray, vLLM and FSDP2 do, on the CPU. A run is tested eight times on the task's held-out
questions and ends with the first test after its budget, or earlier if every question is retired; its last accuracy then
stands for the rest. Each run is a file: a stopped study goes on with the same command; --runs says how many to add, 0
only prints the tables.
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
from learning_curves import generated_tokens, load
from methods import METHODS, TESTS
from rare_runs import ANSWERS, area
from rare_tasks import BASES, RARE_TASKS, RareTask

from data.verl_rows import make_row, write_parquet
from exgrpo.saved import durable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GUARDED = HERE.parent / "guarded"

TASKS = ("rare-sum", "backward")  # of study.py, those of which one rule decides all questions and tests
STUDY = ROOT / "docs" / "experiments" / "rare-success.json"
ROLLOUTS = 8  # of a question, as in the study
LIMIT_S = 3600
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
    f"reward.custom_reward_function.path={HERE / 'rare_reward.py'}",
    "trainer.logger=[console,file]",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
    "trainer.total_epochs=100000",
)
Figures = dict[str, Any]


def verl_keys(study: Sequence[str]) -> list[str]:
    """The Hydra overrides of a method's settings in the study; how long a run is, is left to `run`."""
    found = dict(setting.split("=", 1) for setting in study)
    keys = {LOOP[key]: value for key, value in found.items() if key in LOOP}
    keys[f"{ACTOR}.ppo_mini_batch_size"] = str(int(found["loop.questions"]) // int(found.get("loop.updates", "1")))
    keys |= {key: value for key, value in found.items() if key.startswith("trainer.")}
    keys |= {f"{ACTOR}.{key}": value for key, value in found.items() if key.startswith("policy_loss.")}
    return [f"{key}={value}" for key, value in keys.items()]


def write_questions(task: RareTask, folder: Path) -> None:
    """train.parquet and test.parquet of a task; the ground truth is the question itself."""
    train, _, test = task.split()
    for split, questions in (("train", train), ("test", test)):
        rows = [
            make_row(question, question, index, data_source=task.name, split=split, system=None)
            for index, question in enumerate(questions)
        ]
        write_parquet(rows, folder / f"{split}.parquet")


def run(task: RareTask, method: str, seed: int, study: Mapping[str, Any], folder: Path) -> Figures:
    """One training to the budget, and what it measured."""
    write_questions(task, folder / "data")
    of_study = [each["steps"] for each in study["reported"] if each["task"] == task.name and each["method"] == method]
    every = max(1, round(statistics.median(of_study) / TESTS))
    arguments = [
        *SETTINGS,
        f"data.train_files={folder}/data/train.parquet",
        f"data.val_files={folder}/data/test.parquet",
        f"data.max_response_length={task.max_tokens}",
        f"actor_rollout_ref.model.path={BASES / task.base}",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"trainer.test_freq={every}",
        f"trainer.total_training_steps={4 * every * TESTS}",
        *(f"data.seed={seed}", f"{ROLLOUT}.seed={seed}", f"trainer.exp_seed={seed}"),
        *verl_keys(study["chosen"][task.name][method]),
    ]
    train_to(task, arguments, folder)
    return figures(task, load(folder))


def train_to(task: RareTask, arguments: Sequence[str], folder: Path) -> None:
    """Train until a test comes after the last token of the budget."""
    metrics = folder / "metrics-0000.jsonl"
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
            if metrics.exists() and (curve := curve_of(task, load(folder))) and curve[-1]["generated"] >= task.budget:
                return
    finally:
        process.terminate()
        process.wait()
    if code != 0:  # with 0 every question is retired: the policy stays what it is
        sys.exit(
            f"{folder}/train.log: {'no end in an hour' if code is None else f'exit code {code}'} before the budget"
        )


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
        first = next(iter(METHODS))
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
    study, output = json.loads(STUDY.read_text()), arguments.output.resolve()
    every = [(name, method, seed) for seed in range(arguments.seeds) for name in TASKS for method in METHODS]
    file = {each: output / f"{each[0]}-{each[1].replace(' ', '-')}-{each[2]}" / "figures.json" for each in every}
    missing = [each for each in every if each[0] in arguments.task and not file[each].exists()]
    for each in missing[: arguments.runs]:
        name, method, seed = each
        print(f"{name}, {method}, seed {seed}", flush=True)
        result = run(RARE_TASKS[name], method, seed, study, file[each].parent)
        durable.replace_file(file[each], json.dumps(result) + "\n")
    print(table({each: json.loads(path.read_text()) for each, path in file.items() if path.exists()}, range(10**3)))


if __name__ == "__main__":
    main()
