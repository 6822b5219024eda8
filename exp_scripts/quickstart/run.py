"""Run the quickstart: prepare the questions, start the training, show its progress, write table and picture.

    python exp_scripts/quickstart/run.py [--restart] [--seed N] [--output DIR] [key=value ...]

The training is ``python -m exgrpo.main_mix_ppo`` with the settings below; its own output goes to DIR/train.log.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import learning_curves
import tasks

from exgrpo.on_verl.checkpoints import marked_step

HERE = Path(__file__).resolve().parent
STEPS = 40
SETTINGS = [
    "trainer.rollout_poll_interval=0.05",
    "data.train_batch_size=16",
    "data.max_prompt_length=16",
    "data.max_response_length=48",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.max_model_len=128",
    "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "actor_rollout_ref.rollout.val_kwargs.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192",
    "actor_rollout_ref.actor.optim.lr=5e-5",
    "reward.custom_reward_function.reward_kwargs.require_think=False",
    "trainer.project_name=exgrpo",
    "trainer.experiment_name=quickstart",
    "trainer.logger=[console,file]",
    "trainer.test_freq=20",
    "trainer.save_freq=10",
    "trainer.max_actor_ckpt_to_keep=2",
]
# Text in the log -> the start-up stage that it marks; each stage is shown once, with its time.
STAGES = {
    "Started a local Ray instance": "Ray is up; loading verl",
    "create worker group": "loading the actor (FSDP2)",
    "reward loop manager initialized": "actor and rewards are up; starting the vLLM server",
    "ready to fit": "everything is up",
}


def main() -> None:
    """Prepare, train and report; exits with the training's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("outputs/quickstart"), help="folder of the run")
    parser.add_argument("--restart", action="store_true", help="start over, keep the old run's folder beside it")
    parser.add_argument("--seed", type=int, default=0, help="seed of data order, sampling and replay (default 0)")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides, key=value")
    arguments = parser.parse_intermixed_args()
    bad = [override for override in arguments.overrides if "=" not in override]
    if bad:
        parser.error(f"{bad[0]}: must be key=value")
    output = arguments.output.resolve()
    steps = total_steps(arguments.overrides)
    done = marked_step(output / "checkpoints") or 0
    if arguments.restart or done >= steps:
        set_aside(output)
        done = 0
    tasks.write(output / "data")
    start = f"resuming after step {done}" if done else "from the base model"
    print(f"quickstart: {start}; log in {output}/train.log")
    code = train(output, command(output, arguments.seed, done, arguments.overrides), steps, done)
    if code:
        print(failure(output / "train.log"), file=sys.stderr)
        sys.exit(code)
    learning_curves.show([output])


def total_steps(overrides: list[str]) -> int:
    """The step that this call trains up to."""
    values = [value.split("=", 1)[1] for value in overrides if value.startswith("trainer.total_training_steps=")]
    return int(values[-1]) if values else STEPS


def set_aside(output: Path) -> None:
    """Rename a run's folder to the first free name beside it."""
    if not output.exists():
        return
    number = 1
    while (aside := output.with_name(f"{output.name}-{number}")).exists():
        number += 1
    output.rename(aside)
    print(f"quickstart: the earlier run is in {aside}")


def command(output: Path, seed: int, done: int, overrides: list[str]) -> list[str]:
    """The training command; overrides come last and win."""
    return [
        *(sys.executable, "-m", "exgrpo.main_mix_ppo", "stack=cpu"),
        *SETTINGS,
        f"data.train_files={output}/data/train.parquet",
        f"data.val_files={output}/data/test.parquet",
        f"actor_rollout_ref.model.path={HERE}/base_model",
        f"trainer.default_local_dir={output}/checkpoints",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.val_before_train={not done}",
        *(f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}", f"trainer.exp_seed={seed}"),
        *overrides,
    ]


def train(output: Path, arguments: list[str], steps: int, done: int) -> int:
    """Run the training and show its progress; returns the exit code. It ends with this process in any case."""
    metrics = output / f"metrics-{done:04d}.jsonl"
    environment = os.environ | {
        "VERL_PLATFORM": "cpu",
        "HF_HUB_OFFLINE": "1",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "PYTHONUNBUFFERED": "1",
    }
    with open(output / "train.log", "w") as log:
        process = subprocess.Popen(
            arguments, stdout=log, stderr=subprocess.STDOUT, env=environment, preexec_fn=_die_with_parent
        )
    started = time.monotonic()
    stages, shown = dict(STAGES), 0
    try:
        while True:
            ended = process.poll() is not None
            stages = show_stages(output / "train.log", stages, started)
            shown = show_steps(metrics, shown, steps, started)
            if ended:
                return process.returncode
            time.sleep(0.5)
    except KeyboardInterrupt:
        print("quickstart: stopped; the same command resumes from the last checkpoint")
        return 130
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: leaves no training behind


def show_stages(log: Path, stages: dict[str, str], started: float) -> dict[str, str]:
    """Print the start-up stages that the log has reached; returns the remaining ones."""
    if not stages:
        return stages
    text = log.read_text(errors="replace")
    reached = [mark for mark in stages if mark in text]
    for mark in reached:
        print(f"[{time.monotonic() - started:5.0f} s] {stages[mark]}", flush=True)
    return {mark: words for mark, words in stages.items() if mark not in reached}


def show_steps(metrics: Path, shown: int, steps: int, started: float) -> int:
    """Print the lines of the metrics file after the first ``shown``; returns how many have been shown."""
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    for line in lines[shown:]:
        entry = json.loads(line)
        print(f"[{time.monotonic() - started:5.0f} s] {learning_curves.progress(entry, steps)}", flush=True)
    return len(lines)


def failure(log: Path) -> str:
    """The log's most informative part: its last lines that are not warnings."""
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in log.read_text(errors="replace").splitlines()]
    informative = [line for line in lines if line.strip() and "Warning" not in line and "WARNING" not in line]
    return "\n".join(informative[-12:] + [f"quickstart: the training failed; the full log is {log}"])


if __name__ == "__main__":
    main()
