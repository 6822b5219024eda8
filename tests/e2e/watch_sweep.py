"""Kills or stops processes of a training, one after the other, and prints what became of it.

    export PYTHONPATH=tests:exp_scripts/quickstart:exp_scripts/guarded
    python tests/e2e/watch_sweep.py [--mode sync] [--hits FILE:PART ...] [--patience 20]

A hit is ``SIGNAL:TARGET:PHASE``, such as STOP:controller:save. The run saves each step, and the
same command goes on after each hit, so that the next line of the table shows what the resume did.
It fails if a run does not end by itself, ends well, or leaves a process.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

import conftest
import forked_driver
import psutil
import run as quickstart
import tasks
from test_modes import MODES
from training_run import K, Run

from exgrpo.on_verl.checkpoints import marked_step

# what Ray and vLLM call the processes
TARGETS = {
    "controller": "ray::TransferQueueController",
    "storage": "ray::SimpleStorageUnit",
    "agent": "ray::AgentLoopWorker",
    "reward": "ray::RewardLoopWorker",
    "server": "ray::vLLMHttpServer",
    "engine": "ray::vLLMHttpServer",  # of its children the largest
    "worker": "ray::WorkerDict",
    "runner": "ray::MixTaskRunner",
}
# what an actor's worker does in a phase; of generation the moment after the weights came
PHASES = {"generation": "update_weights", "update": "update_actor", "save": "save_checkpoint"}
HITS = [
    *(f"KILL:{target}:generation" for target in list(TARGETS)[:-1]),
    *(f"STOP:{target}:generation" for target in list(TARGETS)[:-1]),
    *(
        f"{how}:{target}:{phase}"
        for how in ("KILL", "STOP")
        for target in ("controller", "storage", "server", "worker")
        for phase in ("update", "save")
    ),
]
LONGEST_S, GRACE_S = 150, 5


def arguments(folder, data, mode, patience, forks):
    """A small run that saves each step, without an end."""
    settings = quickstart.command(folder, seed=0, done=1, overrides=[])[3:]
    stack = {"stack=cpu": "stack=cpu_separate"} if mode == "separate_async" else {}
    return [
        "exgrpo.main_mix_ppo",
        *(stack.get(setting, setting) for setting in settings),
        forks,
        f"trainer.v1.trainer_mode={mode}",
        *MODES.get(mode, []),
        f"data.train_files={data}/train.parquet",
        f"data.val_files={data}/test.parquet",
        "data.train_batch_size=8",
        f"actor_rollout_ref.rollout.n={K}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.test_freq=-1",
        "trainer.total_training_steps=1000",
        "trainer.save_freq=1",
        f"trainer.rollout_patience_s={patience}",
    ]


def hit(run, how, target, phase):
    """Wait for two steps and then for the phase, and send the signal; what was hit, and when."""
    first = marked_step(run.folder / "checkpoints") or 0
    run.watch.until(lambda: (marked_step(run.folder / "checkpoints") or 0) >= first + 2)
    titles = run.titles()
    victim = next(each for each, title in titles.items() if title.startswith(TARGETS[target]))
    if target == "engine":
        victim = max(victim.children(), key=lambda child: child.memory_info().rss)
    worker = next(each for each, title in titles.items() if title.startswith(TARGETS["worker"]))
    until(lambda: PHASES[phase] in " ".join(worker.cmdline()))
    if phase == "generation":
        until(lambda: PHASES[phase] not in " ".join(worker.cmdline()))
        time.sleep(0.4)
    victim.send_signal(signal.SIGKILL if how == "KILL" else signal.SIGSTOP)
    return time.monotonic()


def until(reached):
    while not reached():
        time.sleep(0.002)


def sweep(folder, command, mode, hits):
    """Print a row for each hit; whether one of them failed."""
    run, failed = Run(folder, command, "run0"), False
    try:
        for number, each in enumerate(hits, 1):
            how, target, phase = each.split(":")
            struck = hit(run, how, target, phase)
            before = run.titles()
            while run.process.poll() is None and time.monotonic() - struck < LONGEST_S:
                time.sleep(0.1)
            seconds, code = time.monotonic() - struck, run.process.poll()
            time.sleep(GRACE_S)
            left = [title for process, title in before.items() if lives(process)]
            said = run.log.read_text(errors="replace").splitlines()
            lines = [line for line in said if line.startswith("exgrpo: ")]
            run.kill()
            saved = marked_step(folder / "checkpoints")
            run = Run(folder, command, f"run{number}")
            run.watch.until(lambda run=run: run.metrics_file.exists() and run.metrics())
            line = lines[-1].replace(str(folder), "") if lines else said[-1]
            resumed = f"from step {saved}: {min(run.metrics())} is next"
            row = [f"{how} {target}", phase, mode, line, f"{seconds:.0f}", code]
            print("|", *(f"{one} |" for one in (*row, left or "nothing", resumed)), flush=True)
            if not code or left or not lines:
                failed = True
                print("\n".join(said[-60:]), file=sys.stderr, flush=True)
    finally:
        run.kill()
    return failed


def lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def main():
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--mode", default="sync", choices=["sync", *MODES])
    cli.add_argument("--hits", nargs="+", default=HITS)
    cli.add_argument("--patience", default="30")
    options = cli.parse_args()
    failed = False
    print(
        "| hit | in | mode | said | s | code | left | the resume |\n| " + "--- | " * 8, flush=True
    )
    with tempfile.TemporaryDirectory(prefix="xgw-") as parent, conftest.shared() as prepared:
        with conftest.read_at_import():
            forked_driver.prepare()
        forks = f"++ray_kwargs.ray_init.runtime_env.py_executable='{prepared}'"
        folder = Path(parent)
        tasks.write(folder)
        command = arguments(folder, folder, options.mode, options.patience, forks)
        failed = sweep(folder, command, options.mode, options.hits)
    sys.exit(failed)


if __name__ == "__main__":
    main()
