"""Prove the GPU path on one GPU: steps, verl's own command beside them, learning, a kill in a save;
JSON and a page.

    bash benchmarks/gpu_proof.sh [--minutes 9] [--at_once] [--cpu] [--output DIR]
        [--stages NAME ...]

A call takes at most --minutes; the same command goes on with what is left. A start of the whole
stack takes minutes on a GPU, so a call starts a wave of trainings together and lets them wait for
each other: the reward of each waits for its turn. --at_once starts both waves together, for a card
of 141 GB and 128 GB of memory. With --cpu, or --one_by_one, stages are started one after another.

facts        versions, GPU, driver, the actor's attention and log-probs
actor        log-probs and update alone, by setting (benchmarks/actor.py), 1.5B with random weights
             (untrained.py)
large        its steps with and without replay, in pairs (benchmarks/step.py), as a run takes them
             by default
stock        verl's own main_ppo with the same settings
large_sdpa   pairs again with sdpa and fused log-probs by torch
smollm2      pairs with SmolLM2-135M
on_policy, published, groups   SmolLM2 learns sums of three numbers: accuracy by step
resume       the quickstart is killed in a save, by SIGKILL, and resumes; the lost steps are drawn
             again identically
evaluation   its last checkpoint, by eval/eval.sh
release      exp_scripts/setup_gpu.sh --container and run_exgrpo.sh themselves, with the
             quickstart's model

A stage whose time is up keeps what it has finished, and one that fails leaves the others standing;
the page says so of each. DIR (default outputs/gpu_proof) gets proof.json, proof.md and the logs.
``--overrides key=value ...`` are passed to every training.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from pathlib import Path

import proof_page
from common import ROOT, OutOfTime, at_least, refuse
from proof_stages import END_S, STAGES, Facts, LeftOut, prepared


def main() -> None:
    """Run the stages that are left, as far as time allows, writing JSON and page after each."""
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--cpu", action="store_true", help="on the CPU stack, with fewer steps")
    cli.add_argument("--minutes", type=at_least(1), default=9, help="of this call (default 9)")
    cli.add_argument("--spent_s", type=at_least(0), default=0, help="of them, before this program")
    cli.add_argument("--at_once", action="store_true", help="both waves together")
    cli.add_argument(
        "--one_by_one", action="store_true", help="a stage starts when the one before has ended"
    )
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "gpu_proof")
    cli.add_argument(
        "--stages", nargs="+", choices=list(STAGES), help="these, also if they are finished"
    )
    cli.add_argument("--overrides", nargs="*", default=[], help="Hydra overrides of every training")
    cli.add_argument("--pairs", type=at_least(1), help="pairs of steps (default 5; with --cpu 1)")
    options = cli.parse_args()
    ends = time.monotonic() + 60 * options.minutes - options.spent_s
    options.output = options.output.resolve()
    options.stack = "cpu" if options.cpu else "one_gpu"
    options.pairs = options.pairs or (1 if options.cpu else 5)
    options.one_by_one = options.one_by_one or options.cpu
    if not options.cpu and not gpu_is_there():
        refuse("gpu_proof: torch finds no GPU; --cpu proves the CPU stack")
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "proof.json"
    results: dict[str, Facts] = json.loads(file.read_text()) if file.is_file() else {}
    names = options.stages or of_this_call(results, options.at_once)
    begun = run_wave(options, names, results, ends)
    if left := left_to_do(results):
        print(f"gpu_proof: the same command goes on with {', '.join(left)}")
    print(f"gpu_proof: {options.output}/proof.md", flush=True)
    sys.exit(any("failed" in results[name] for name in begun))


def left_to_do(results: dict[str, Facts]) -> list[str]:
    """The stages that no call has begun, and those that failed or whose time was up."""
    return [
        name
        for name in STAGES
        if name not in results or {"failed", "unfinished"} & results[name].keys()
    ]


def of_this_call(results: dict[str, Facts], at_once: bool) -> list[str]:
    """The first wave with something left, or all of them."""
    left = left_to_do(results)
    waves = {STAGES[name].wave for name in left}
    return [name for name in left if at_once or STAGES[name].wave == min(waves)]


def run_wave(
    options: argparse.Namespace, names: list[str], results: dict[str, Facts], ends: float
) -> list[str]:
    """Start the stages and give them their turns, until all have ended; the names of those
    begun.
    """
    turns = options.output / "turns"
    shutil.rmtree(turns, ignore_errors=True)
    turns.mkdir()
    order = sorted(names, key=lambda name: STAGES[name].turn)
    done: dict[str, threading.Event] = {name: threading.Event() for name in names}

    def work(name: str) -> None:
        results[name] = one_stage(name, options, ends)
        write(options, results)
        done[name].set()

    prepared(options, names)
    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in order]
    begun = []
    for place, name in enumerate(order):
        if options.one_by_one and time.monotonic() > ends - 2 * END_S:
            break
        threads[place].start()
        begun.append(name)
        if options.one_by_one:
            (turns / name).touch()
            threads[place].join()
    for turn in sorted({STAGES[name].turn for name in begun}):
        now = [name for name in begun if STAGES[name].turn == turn]
        for name in now:
            (turns / name).touch()
        for name in now:
            done[name].wait()
    return begun


_writing = threading.Lock()


def write(options: argparse.Namespace, results: dict[str, Facts]) -> None:
    """What is known so far, as JSON and as a page."""
    with _writing:
        known = {name: results[name] for name in STAGES if name in results}
        (options.output / "proof.json").write_text(json.dumps(known, indent=1) + "\n")
        (options.output / "proof.md").write_text(proof_page.page(known))


def one_stage(name: str, options: argparse.Namespace, ends: float) -> Facts:
    """What a stage found, also if it failed or its time was up."""
    print(f"{name}: begins", flush=True)
    started, found = time.monotonic(), Facts()
    try:
        STAGES[name].work(options, found, ends - END_S)
    except LeftOut as error:
        found["left out"] = str(error)
    except OutOfTime as error:
        found["unfinished"] = str(error)
    except Exception as error:  # the other stages must run in any case
        found["failed"] = f"{type(error).__name__}: {error}"[-2000:]
    found["seconds"] = round(time.monotonic() - started, 1)
    reasons = [
        f"{word}: {found[word]}" for word in ("left out", "unfinished", "failed") if word in found
    ]
    print(f"{name}: {reasons[0] if reasons else 'done'} ({found['seconds']} s)", flush=True)
    return found


def gpu_is_there() -> bool:
    """Whether torch can use a GPU."""
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    main()
