"""Runs the quickstart: prepares the questions, starts the training, shows where it is, writes table
and picture.

    python exp_scripts/quickstart/run.py [--restart] [--seed N] [--output DIR] [key=value ...]

The training is ``exgrpo-train`` with the settings below; its own output goes to DIR/train.log. It
runs under ``exp_scripts/guarded``: however this program ends, all of the training ends with it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import learning_curves
import progress
import tasks

from exgrpo.on_verl.checkpoints import marked_step
from exgrpo.overrides import override

HERE = Path(__file__).resolve().parent
GUARDED = HERE.parent / "guarded"
STEPS = 40
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SETTINGS = [
    "trainer.rollout_poll_interval=0.05",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",  # its activations are a few MB
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


def main() -> None:
    """Prepare, train, report; exits with the training's exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/quickstart"), help="folder of the run"
    )
    parser.add_argument(
        "--restart", action="store_true", help="begin anew, keep the old run's folder beside it"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of data order, sampling and replay (default 0)"
    )
    parser.add_argument("overrides", nargs="*", help="Hydra overrides, key=value")
    arguments = parser.parse_intermixed_args()
    bad = [override for override in arguments.overrides if "=" not in override]
    if bad:
        parser.error(f"{bad[0]}: must be key=value")
    stop_at_signals()
    try:
        sys.exit(quickstart(arguments))
    except Stopped as stopped:
        print(f"quickstart: stopped; {how_to_go_on(arguments.output, arguments.restart)}")
        sys.exit(stopped.code)


def quickstart(arguments: argparse.Namespace) -> int:
    """All of it; the training's exit code."""
    output = arguments.output.resolve()
    if clear(output):
        return 1  # a run is going on there, as has been said
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
        print(failure(output, code, arguments.restart), file=sys.stderr)
    else:
        learning_curves.show([output])
        show_replay(output)
    return code


def show_replay(output: Path) -> None:
    """Write the page on what replay did; nothing of a run without replay."""
    page = output / "replay.html"
    arguments: list[object] = [output / "checkpoints", "--html", page]
    arguments += ["--train_files", output / "data" / "train.parquet"]
    arguments += ["--rollouts", output / "rollouts"]
    command = [sys.executable, "-m", "exgrpo_tools.inspect", *map(str, arguments)]
    if subprocess.run(command, capture_output=True).returncode == 0:
        print(f"  {'what replay did':26} {page}")


class Stopped(Exception):
    """A signal asked this program to end; ``code`` is the exit code that says which."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number


def how_to_go_on(output: Path, restarted: bool) -> str:
    """What a person does to continue this run, if it has come as far as a checkpoint."""
    if not marked_step(output / "checkpoints"):
        return "it had no checkpoint yet, so the same command begins anew"
    return (
        f"the same command{' without --restart' if restarted else ''} resumes from the last "
        "checkpoint"
    )


def total_steps(overrides: list[str]) -> int:
    """The number of steps this call trains to."""
    found = [
        value.split("=", 1)[1]
        for value in overrides
        if value.startswith("trainer.total_training_steps=")
    ]
    if found and not found[-1].isdigit():
        sys.exit(f"quickstart: trainer.total_training_steps={found[-1]}: must be a whole number")
    return int(found[-1]) if found else STEPS


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
    """The training command; overrides stand last and win."""
    return [
        *(sys.executable, "-m", "exgrpo.main_mix_ppo", "stack=cpu"),
        *SETTINGS,
        override("data.train_files", output / "data" / "train.parquet"),
        override("data.val_files", output / "data" / "test.parquet"),
        override("actor_rollout_ref.model.path", HERE / "base_model"),
        override("trainer.default_local_dir", output / "checkpoints"),
        override("trainer.rollout_data_dir", output / "rollouts"),
        f"trainer.total_training_steps={STEPS}",
        f"trainer.val_before_train={not done}",
        *(
            f"data.seed={seed}",
            f"actor_rollout_ref.rollout.seed={seed}",
            f"trainer.exp_seed={seed}",
        ),
        *overrides,
    ]


def train(output: Path, arguments: list[str], steps: int, done: int) -> int:
    """Run the training and show its progress; the exit code. It ends with this process, however
    that ends.
    """
    metrics = output / f"metrics-{done:04d}.jsonl"
    environment = os.environ | {
        "VERL_PLATFORM": "cpu",
        "HF_HUB_OFFLINE": "1",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "PYTHONUNBUFFERED": "1",
    }
    shown = progress.view(output, steps, done)
    with open(output / "train.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, str(GUARDED), str(output), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=_die_with_parent,
        )
    try:
        with shown:
            code = progress.follow(process, output / "train.log", metrics, shown)
        return code if code >= 0 else 128 - code
    finally:
        for number in SIGNALS:
            signal.signal(
                number, signal.SIG_IGN
            )  # the end takes a second; it is not to be cut short
        process.terminate()
        process.wait()
        clear(output)  # does nothing, unless the guard itself was killed


def clear(output: Path) -> int:
    """End and remove what a killed run of this folder left; 0, or 1 if a run is going on there."""
    return subprocess.run([sys.executable, str(GUARDED), str(output)]).returncode


def stop_at_signals() -> None:
    """Let Ctrl-C, SIGTERM and a closed terminal raise Stopped, but for those that the caller had
    ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: no training is left behind


def failure(output: Path, code: int, restarted: bool) -> str:
    """What of the log a person wants to see first: the last lines that are not warnings."""
    log = output / "train.log"
    if code == 128 + signal.SIGKILL:
        return (
            "quickstart: the training was killed, by hand or for want of memory; "
            f"{how_to_go_on(output, restarted)}"
        )
    lines = [
        re.sub(r"\x1b\[\d+m", "", line) for line in log.read_text(errors="replace").splitlines()
    ]
    telling = [
        line for line in lines if line.strip() and "Warning" not in line and "WARNING" not in line
    ]
    return "\n".join(telling[-12:] + [f"quickstart: the training failed; all of it in {log}"])


if __name__ == "__main__":
    main()
