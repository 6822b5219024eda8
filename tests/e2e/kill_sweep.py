"""SIGKILLs a training again and again, half of them inside a save, and compares it with one that
never stopped.

    export PYTHONPATH=tests:exp_scripts/quickstart:exp_scripts/guarded
    python tests/e2e/kill_sweep.py [--kills 10] [--steps 18] [--seed 0]

The run saves each step. Every other kill falls as soon as a chosen file of a save appears, the
others at a random moment of the two steps after a save. The same command goes on each time. In the
end the pool's files, the questions asked in each step, the weights and the optimizer's states must
be equal to the bit; the pool's manifest but for the random id of its run. It fails as well if a run
ends before its kill, or if less than two kills fell into a save.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import conftest
import forked_driver
import run as quickstart
import tasks
import torch
from training_run import K, Run

from exgrpo.on_verl.checkpoints import marked_step

ROOT = Path(__file__).parents[2]
EXACT = ["trainer.rollout_seeded=True", "actor_rollout_ref.rollout.max_num_seqs=1"]
EXACT += ["actor_rollout_ref.rollout.enable_prefix_caching=False", "data.train_max_samples=32"]
# of a step's folder, in the order in which a save makes them; the marker is named for its step
STAGES = [
    ".experience.tmp",
    "actor/model_*",
    "actor/optim_*",
    "actor/huggingface",
    "data.pt",
    "marker",
    ".seal.json.*",
]


def arguments(folder, data, steps, forks):
    """A small run that saves each step."""
    return [
        *(
            "exgrpo.main_mix_ppo",
            *quickstart.command(folder, seed=0, done=1, overrides=[])[3:],
            *EXACT,
            forks,
        ),
        *(
            f"data.train_files={data}/train.parquet",
            f"data.val_files={data}/test.parquet",
            "data.train_batch_size=8",
        ),
        *(
            f"actor_rollout_ref.rollout.n={K}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "trainer.test_freq=-1",
        ),
        *(
            f"trainer.total_training_steps={steps}",
            "trainer.save_freq=1",
            "trainer.max_actor_ckpt_to_keep=3",
        ),
    ]


def kill_at(run, reached):
    """SIGKILL to all of a run as soon as `reached()`; False if it ended before that."""
    pids, looked = [], 0.0
    while not reached():
        if run.process.poll() is not None:
            return False
        if time.monotonic() - looked > 0.5:  # known before, so that the kill itself takes no time
            pids, looked = run._processes(), time.monotonic()
        time.sleep(0.0003)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.kill()
    return True


def appears(root, stage, step):
    """Whether a save of the step has come as far as the stage."""
    if stage == "marker":
        marker = root / "latest_checkpointed_iteration.txt"
        return marker.exists() and marker.read_text() in ("", str(step))
    return any((root / f"global_step_{step}").glob(stage))


def left(root):
    """The stages of the newest save that a kill has left, and whether it was complete."""
    newest = max((int(path.name.split("_")[-1]) for path in root.glob("global_step_*")), default=0)
    folder = root / f"global_step_{newest}"
    there = [
        stage for stage in (*STAGES, "experience") if stage != "marker" and any(folder.glob(stage))
    ]
    sealed = (folder / "seal.json").exists()
    return (
        f"step {newest} {'whole' if sealed else 'cut off: ' + ' '.join(there)}, marker "
        f"{marked_step(root)}",
        sealed,
    )


def compare(ours, theirs, steps):
    """What differs between two finished runs; empty if nothing."""
    wrong = []
    folders = [run[-1].folder / "checkpoints" / f"global_step_{steps}" for run in (ours, theirs)]
    names = [
        sorted(p.relative_to(f) for p in f.rglob("*") if p.is_file() and p.name != "seal.json")
        for f in folders
    ]
    wrong += [] if names[0] == names[1] != [] else [f"files {names}"]
    for name in names[1]:
        one, other = (folder / name for folder in folders)
        if name.name == "manifest.json":
            same = manifest(one) == manifest(other)
        elif name.suffix == ".pt":
            same = equal(
                *(without_rng(torch.load(path, weights_only=False)) for path in (one, other))
            )
        else:
            same = one.read_bytes() == other.read_bytes()
        wrong += [] if same else [str(name)]
    compared = 0
    for step in range(1, steps + 1):
        asked = [
            next(filter(None, (drawn(run, step) for run in reversed(runs))), None)
            for runs in (ours, theirs)
        ]
        if (
            asked[0] is None
        ):  # a kill between a step's marker and its record: what follows it is compared
            continue
        compared += 1
        wrong += [] if asked[0] == asked[1] else [f"rollouts of step {step}"]
    print(
        f"compared: {len(names[1])} files of step {steps}, rollouts of {compared} of {steps} steps"
    )
    return wrong


def drawn(run, step):
    """What a run drew in a step; None if it has no whole record of it, which a kill may have cut
    off.
    """
    try:
        return run.drawn(step)
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def manifest(path):
    content = json.loads(path.read_text())
    content["replay_state"].pop("run")
    content.pop("checksum")
    return content


def without_rng(saved):
    """Without the generators of the worker's process, which verl saves: nothing in these runs draws
    from them.
    """
    return (
        {name: value for name, value in saved.items() if name != "rng"}
        if isinstance(saved, dict)
        else saved
    )


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    one, other = (each.to_local() if hasattr(each, "to_local") else each for each in (one, other))
    return (
        torch.equal(one, other)
        if torch.is_tensor(one)
        else bool((one == other) if not hasattr(one, "all") else (one == other).all())
    )


def main():
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--kills", type=int, default=10)
    cli.add_argument("--steps", type=int, default=18)
    cli.add_argument("--seed", type=int, default=0)
    options = cli.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="xgk-") as parent, conftest.shared() as prepared:
        with conftest.read_at_import():
            forked_driver.prepare()
        forks = f"++ray_kwargs.ray_init.runtime_env.py_executable='{prepared}'"
        data, whole, killed = (Path(parent, name) for name in ("data", "whole", "killed"))
        for folder in (data, whole, killed):
            folder.mkdir()
        tasks.write(data)
        began = time.monotonic()
        unbroken = Run(whole, arguments(whole, data, options.steps, forks), "run")
        unbroken.wait()
        times = [metrics["perf/time_per_step"] for metrics in unbroken.metrics().values()]
        a_step, parts, in_save, missed = statistics.median(times), [], 0, 0
        print(f"unbroken: {time.monotonic() - began:.0f} s, {a_step:.1f} s a step", flush=True)
        root = killed / "checkpoints"
        for number in range(options.kills):
            done = marked_step(root) or 0
            parts.append(
                Run(killed, arguments(killed, data, options.steps, forks), f"part{number}")
            )
            if number % 2 == 0:
                stage, step = STAGES[number // 2 % len(STAGES)], done + 1
                hit = kill_at(parts[-1], lambda stage=stage, step=step: appears(root, stage, step))
                moment = f"at {stage} of step {step}"
            else:
                pause, saved = rng.uniform(0, 2 * a_step), []

                def later(step=done + 1, pause=pause, saved=saved):
                    if not saved and (marked_step(root) or 0) >= step:
                        saved.append(time.monotonic())
                    return bool(saved) and time.monotonic() > saved[0] + pause

                hit = kill_at(parts[-1], later)
                moment = f"{pause:.1f} s after step {done + 1}"
            state, sealed = left(root)
            in_save += hit and not sealed
            missed += not hit
            if not hit:
                print(parts[-1].watch.said(), flush=True)
                parts[-1].kill()
            print(
                f"{number + 1}: {'killed' if hit else 'ended before'} {moment}: {state}", flush=True
            )
        parts.append(Run(killed, arguments(killed, data, options.steps, forks), "last"))
        parts[-1].wait()
        wrong = compare(parts, [unbroken], options.steps)
    print(
        f"{options.kills - missed} kills, {in_save} of them in a save: "
        f"{wrong or 'equal to the bit'}"
    )
    sys.exit(bool(wrong or missed or in_save < 2))


if __name__ == "__main__":
    main()
