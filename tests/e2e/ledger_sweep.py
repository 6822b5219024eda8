"""SIGKILLs a training at random moments between two saves, with its ledger of finished groups, and
says what each kill cost.

    export PYTHONPATH=tests:exp_scripts/quickstart:exp_scripts/guarded
    python tests/e2e/ledger_sweep.py [--kills 10] [--steps 24] [--seed 0]

Each fourth step is saved. A kill falls at a random moment of the four steps after a start. A line
has the rollouts of unfinished steps that were there, all of which would be generated again without
the ledger, and those which the ledger lacks. It fails if a group is generated a second time after
it was kept, or if in the end anything differs from a run that never stopped: pool, rollouts of all
steps, weights, optimizer.
"""

import argparse
import collections
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import conftest
import forked_driver
import kill_sweep
import tasks
from training_run import ROOT, Run

from exgrpo.on_verl import finished_groups
from exgrpo.on_verl.checkpoints import MARKER, marked_step
from exgrpo.saved import ledger

SAVED = 4  # each so many steps


def arguments(folder, data, steps, forks):
    return [
        *kill_sweep.arguments(folder, data, steps, forks),
        f"trainer.save_freq={SAVED}",
        "trainer.rollout_ledger_bytes=100_000_000",
        "trainer.val_before_train=False",
        f"reward.custom_reward_function.path={ROOT}/tests/e2e/logged_reward.py",
    ]


def kept(path):
    """(step, position) -> rows of each record in the ledger, and how many are there twice."""
    places, twice = {}, 0
    if path.exists():
        total = path.stat().st_size
        with path.open("rb") as file:
            while record := ledger._read(file, total):
                about, data = record
                if "position" in about:
                    place = about["step"], about["position"]
                    twice += place in places
                    places[place] = len(finished_groups.unpacked(data)[1])
    return places, twice


def judged(path, since):
    """How many rollouts were judged after a moment."""
    return sum(float(line) > since for line in path.read_text().split()) if path.exists() else 0


def main():
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--kills", type=int, default=10)
    cli.add_argument("--steps", type=int, default=24)
    cli.add_argument("--seed", type=int, default=0)
    options = cli.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="xgl-") as parent, conftest.shared() as prepared:
        with conftest.read_at_import():
            forked_driver.prepare()
        forks = f"++ray_kwargs.ray_init.runtime_env.py_executable='{prepared}'"
        data, whole, killed = (Path(parent, name) for name in ("data", "whole", "killed"))
        for folder in (data, whole, killed):
            folder.mkdir()
        tasks.write(data)
        os.environ["JUDGED"] = str(whole / "judged")
        began = time.monotonic()
        unbroken = Run(whole, arguments(whole, data, options.steps, forks), "run")
        unbroken.wait()
        steps = unbroken.metrics().values()
        times = [metrics["perf/time_per_step"] for metrics in steps]
        generating = sum(metrics["timing_s/gen"] for metrics in steps)
        a_step, asked = statistics.median(times), judged(whole / "judged", 0)
        print(
            f"unbroken: {time.monotonic() - began:.0f} s, {a_step:.2f} s a step, {asked} rollouts, "
            f"{generating / asked:.3f} s each",
            flush=True,
        )
        root, file = killed / "checkpoints", killed / "checkpoints" / finished_groups.FILE
        os.environ["JUDGED"], parts, lost = str(killed / "judged"), [], collections.Counter()
        for number in range(options.kills):
            before, _ = kept(file)
            if (marked_step(root) or 0) >= options.steps - SAVED:
                break  # too few steps are left
            began, pause, first = time.time(), rng.uniform(0, SAVED * a_step), []
            run = Run(killed, arguments(killed, data, options.steps, forks), f"part{number}")
            parts.append(run)

            def there(run=run, pause=pause, first=first):
                log = run.log.read_text(errors="replace") if run.log.exists() else ""
                if not first and "Training Progress" in log:
                    first.append(time.time())
                return bool(first) and time.time() > first[0] + pause

            hit = kill_sweep.kill_at(run, there)
            marker = root / MARKER
            saved = marker.stat().st_mtime if marker.exists() else 0
            now, twice = kept(file)
            of_now = sum(now.values())
            old = sum(before.values()) if saved < began else 0
            without = old + judged(killed / "judged", max(*first, saved))
            lost += {"kills": hit, "without": without, "with": without - of_now, "twice": twice}
            print(
                f"{number + 1}: {'killed' if hit else 'ended'} {pause:.1f} s after it began, "
                f"saved {marked_step(root) or 0}: {without} rollouts are there, {len(now)} groups "
                f"of {of_now} in the ledger, lost {without - of_now}; twice {twice}",
                flush=True,
            )
        parts.append(Run(killed, arguments(killed, data, options.steps, forks), "last"))
        parts[-1].wait()
        wrong = kill_sweep.compare(parts, [unbroken], options.steps)
        if file.exists():
            wrong.append("a ledger is left after the last save")
        each = generating / asked
        print(
            f"{lost['kills']} kills: {lost['without']} rollouts ({lost['without'] * each:.0f} s) "
            f"lost without, {lost['with']} ({lost['with'] * each:.0f} s) with the ledger, "
            f"{lost['twice']} groups twice; {wrong or 'equal to the bit'}"
        )
    sys.exit(bool(wrong or lost["twice"]))


if __name__ == "__main__":
    main()
