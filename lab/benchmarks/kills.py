"""Kills the quickstart at random moments and looks for what it leaves.

    python lab/benchmarks/kills.py [--runs 20] [--within_s 60] [--seed 0]

Each run is the quickstart's program in an empty folder; it gets SIGINT, SIGTERM or SIGKILL in turn, at a random moment.
Ten seconds later there must be no process of it, nothing in its temporary folder, and no file of its in shared memory.
A process is known by a variable in its environment, a file in shared memory by a process that has mapped it.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import benchmark_folders  # noqa: F401
from common import ROOT, at_least, die_with_parent, environment_of

import process_tree

MARK = "EXGRPO_KILLS"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
GONE_S = 10.0


def main() -> None:
    """Run, kill, look; exits with 1 if anything was left."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--runs", type=at_least(1), default=20)
    cli.add_argument("--within_s", type=float, default=60.0, help="after its start a run is killed")
    cli.add_argument("--seed", type=int, default=0)
    options = cli.parse_args()
    rng = random.Random(options.seed)
    failures = 0
    for number in range(options.runs):
        which, moment = SIGNALS[number % len(SIGNALS)], rng.uniform(0, options.within_s)
        reached, took, left = once(which, moment)
        failures += bool(left)
        ended = f"{which.name} after {moment:.1f} s ({reached}): gone in {took:.1f} s"
        print(f"{number + 1}: {ended}, {left or 'nothing left'}", flush=True)
    print(f"{options.runs - failures} of {options.runs} left nothing")
    sys.exit(bool(failures))


def once(which: signal.Signals, moment: float) -> tuple[str, float, list[str]]:
    """How far it was, seconds until all of it was gone, and what was left."""
    with tempfile.TemporaryDirectory(prefix="xgk-") as parent:
        output, temporary = Path(parent, "run"), Path(parent, "tmp")
        temporary.mkdir()
        mark = f"{MARK}={parent}"
        environment = {**os.environ, **environment_of("cpu"), "TMPDIR": str(temporary), MARK: parent}
        run = [sys.executable, str(ROOT / "exp_scripts" / "quickstart" / "run.py"), "--output", str(output)]
        process = subprocess.Popen(
            run, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=environment, preexec_fn=die_with_parent
        )
        shared: set[str] = set()
        until = time.monotonic() + moment
        while time.monotonic() < until:
            time.sleep(min(0.5, max(0.0, until - time.monotonic())))
            shared |= process_tree.shared_files(marked(mark))
        reached = how_far(output)
        killed = time.monotonic()
        process.send_signal(which)
        while (left := remains(mark, temporary, shared)) and time.monotonic() - killed < GONE_S:
            time.sleep(0.1)
        took = time.monotonic() - killed
        process.wait()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        return reached, took, left


def marked(mark: str) -> list[int]:
    """Living processes that have the variable, as their program was started with."""
    found = []
    for process in process_tree.everything():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if mark.encode() in variables and not process.ended:
            found.append(process.pid)
    return found


def remains(mark: str, temporary: Path, shared: set[str]) -> list[str]:
    """Processes, temporary files and shared memory that are there."""
    processes = [f"process {pid} {called(pid)}" for pid in marked(mark)]
    files = [str(path) for path in temporary.iterdir()]
    return processes + files + sorted(name for name in shared if os.path.exists(name))


def called(pid: int) -> str:
    """The command of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "that has just ended"


def how_far(output: Path) -> str:
    """The last step of its log, or that it was starting."""
    log = output / "train.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    steps = text.count("step:")
    return f"{steps} steps" if steps else "starting"


if __name__ == "__main__":
    main()
