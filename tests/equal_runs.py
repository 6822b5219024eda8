"""Prove that the working tree behaves as the commit BASE: python tests/equal_runs.py BASE

Five parts are recorded from a worktree of BASE and from this checkout, each in a process that
imports its own code alone: a simulated world, losses with gradients, the lines for wrong values
(BASE's tables), 12 steps of the CPU trainer with a resume, the resolved configurations. The
differences are printed, none if there are none; exit code 1 if there are any.

With --keep, what BASE recorded is used again by the next call, which then takes half the time.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDER = ROOT / "tests" / "equal_parts.py"
PARTS = ("world", "losses", "refusals", "configurations", "trainer")
SHOWN = 20  # differences of a part
# What is meant to differ: part of a difference's line -> why
MEANT = {
    "undrawable_questions": "gone with exp_difficulty=fresh, by which alone it was not 0",
    "exp_max_candidates": "gone",
    "off_policy_baseline_shift": "gone with asymre",
    "off_policy_m2_bound": "gone with m2po",
    "asymre": "gone",
    "m2po": "gone",
    "released, fresh, mean_reward": "without fresh",
    "exgrpo.preflight.verls_command.Preflight": "moved",
    "=null: must be": "a null is shown as YAML writes it",
    "trainer.use_v1='no'": "the one value that is allowed is said at once",
    "checkpoint.save_contents": "the weights are among them",
    "checkpoint.load_contents": "the weights are among them",
    "must divide data.train_batch_size": "verl would fill up with empty rows",
    "optim.betas": "two numbers below 1",
    "must be a file that is there": "passed",
    "must be a module that can be imported": "passed",
    "new one that can be made": "the reason is said",
    "must be an optimizer of": "passed",
    "optim.lr=": "at most 1",
    "global_profiler": "passed",
    "checkpoint_engine.backend": "passed",
    "rollout.load_format": "vLLM's list",
    "rollout.logprobs_mode": "vLLM's list",
    "rollout.quantization": "verl's list",
    "rollout_correction.rollout_is": "verl's list",
    "off_policy_min_clip": "below 1 with p_div_p",
    "oldest, newest, or": "a new name",
}


def main() -> None:
    """Record both sides, print the differences."""
    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("base", metavar="BASE", help="a commit")
    cli.add_argument("--without-trainer", action="store_true", help="without its minutes")
    cli.add_argument("--only", choices=PARTS, help="one part")
    cli.add_argument(
        "--except",
        dest="meant",
        nargs="+",
        default=[],
        metavar="NAME",
        help="leave out differences whose line has this text, such as a key that is gone",
    )
    cli.add_argument("--keep", type=Path, metavar="FOLDER", help="for what BASE recorded")
    arguments = cli.parse_args()
    base = git("rev-parse", "--verify", f"{arguments.base}^{{commit}}")
    recorders = b"".join(path.read_bytes() for path in sorted(ROOT.glob("tests/equal_*.py")))
    name = f"{base}-{hashlib.sha256(recorders).hexdigest()[:8]}"  # both decide what is kept
    parts = [arguments.only] if arguments.only else list(PARTS)
    if arguments.without_trainer:
        parts.remove("trainer")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        kept = arguments.keep or folder / "base"
        kept.mkdir(parents=True, exist_ok=True)
        with checkout(base, folder) as before:
            tables = kept / f"{name}-tables"
            for part in parts:
                if not (kept / f"{name}-{part}").exists():
                    record(part, before, tables, kept / f"{name}-{part}")
            for part in parts:
                record(part, ROOT, tables, folder / part)
        found = [compare(part, kept / f"{name}-{part}", folder / part) for part in parts]
    left_out = [*MEANT, *arguments.meant]
    lines = [[line for line in each if not any(n in line for n in left_out)] for each in found]
    for of_part in lines:
        print("\n".join(of_part[:SHOWN]), end="\n" if of_part else "")
        if len(of_part) > SHOWN:
            print(f"... and {len(of_part) - SHOWN} more")
    sys.exit(any(lines))


@contextlib.contextmanager
def checkout(commit: str, folder: Path):
    """A worktree of the commit, for as long as this lasts."""
    place = folder / "checkout"
    git("worktree", "add", "--detach", str(place), commit)
    try:
        yield place
    finally:
        git("worktree", "remove", "--force", str(place))


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"equal_runs: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def record(part: str, root: Path, tables: Path, output: Path) -> None:
    """Have a process record the part as the code in `root` does it."""
    pytest = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    sources = [root, root / "packages", *sorted(root.glob("packages/*/src")), root / "tests/unit"]
    sources += [root / folder for folder in pytest["pythonpath"]]
    environment = os.environ | {"PYTHONPATH": ":".join(map(str, sources))}
    command = [sys.executable, RECORDER, part, root, tables, output]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    if done.returncode:
        where = "this checkout" if root == ROOT else "BASE"
        sys.exit(f"equal_runs: {part} of {where} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def compare(part: str, before: Path, now: Path) -> list[str]:
    """A line for each value that differs, with what is where they begin to."""
    old, new = (json.loads(path.read_text()) for path in (before, now))
    lines = []
    for name in [*old, *(name for name in new if name not in old)]:
        was, is_now = (json.dumps(side[name]) if name in side else "-" for side in (old, new))
        if was != is_now:
            pairs = enumerate(zip(was, is_now, strict=False))
            start = max(0, next((i for i, (a, b) in pairs if a != b), 0) - 40)
            shown = slice(start, start + 160)
            lines.append(f"{part}: {name}: {was[shown]} -> {is_now[shown]}")
    return lines


if __name__ == "__main__":
    main()
