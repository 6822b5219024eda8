"""Damages a real checkpoint at random, 200 times, and looks at what a run that resumes makes of it.

    python lab/benchmarks/damages.py RUN OTHER_RUN [--damages 200] [--seed 0]

RUN and OTHER_RUN are folders of checkpoints of two short trainings, such as two quickstarts with other seeds. Each
damage is done to a copy. Then everything is done that happens before Ray starts, and what the trainer does before its
workers start. Noticed: the run goes on from another checkpoint, or is refused, with one line. Harmless: what it goes on
from is equal, tensor by tensor and trajectory by trajectory. Anything else is a fault; with one the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmark_folders  # noqa: F401
import torch
from common import at_least
from omegaconf import OmegaConf

from exgrpo.experience.config import ExperienceConfig
from exgrpo.on_verl import checkpoints
from exgrpo.saved.pool_files import read_manifest

KINDS = ("flip", "cut", "empty", "remove", "swap", "older", "foreign", "folder", "marker")
GOOD = ("noticed", "harmless")


def main() -> None:
    """Damage, resume, count; a line for each fault and a table at the end."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("run", type=Path)
    cli.add_argument("other_run", type=Path)
    cli.add_argument("--damages", type=at_least(1), default=200)
    cli.add_argument("--seed", type=int, default=0)
    options = cli.parse_args()
    heard = Lines()
    logging.getLogger("torch").setLevel(logging.ERROR)
    logging.getLogger("exgrpo").addHandler(heard)
    logging.getLogger("exgrpo").propagate = False
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as parent:
        real, root = Path(parent, "real"), Path(parent, "root")
        shutil.copytree(options.run, real)
        shutil.copytree(real, root)
        whole = resumed(root, options.run)
        counts: Counter[tuple[str, str]] = Counter()
        for number in range(options.damages):
            kind = KINDS[number % len(KINDS)]
            shutil.rmtree(root)
            shutil.copytree(real, root)
            what = damage(rng, kind, root, options.other_run)
            heard.lines.clear()
            outcome = judge(lambda: resumed(root, options.run), whole, heard.lines)
            counts[kind, outcome] += 1
            if outcome not in GOOD:
                print(f"{number}: {kind} of {what}: {outcome}; said {heard.lines}", flush=True)
    for kind in KINDS:
        print(kind.ljust(9), {outcome: count for (of, outcome), count in sorted(counts.items()) if of == kind})
    good = sum(count for (_, outcome), count in counts.items() if outcome in GOOD)
    print(f"{good} of {options.damages} damages are noticed in one line or harmless")
    sys.exit(good != options.damages)


class Lines(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def damage(rng: random.Random, kind: str, root: Path, other: Path) -> str:
    """Do a damage to the newest checkpoint; what was damaged."""
    steps = checkpoints.saved_steps(root)
    newest, older = (checkpoints.step_folder(root, step) for step in steps[:2])
    files = sorted(path for path in newest.rglob("*") if path.is_file() and "huggingface" not in path.parts)
    path, content = rng.choice(files), b""
    if kind == "marker":
        marker = root / checkpoints.MARKER
        marker.write_text(rng.choice(["", str(steps[0] + 1), "x", str(steps[0])[:-1]]))
        return f"{marker.name}: {marker.read_text()!r}"
    if kind == "folder":
        path = rng.choice([newest / "actor", newest / checkpoints.POOL, newest / checkpoints.POOL / "trajectories"])
        shutil.rmtree(path)
    elif kind == "remove":
        path.unlink()
    elif kind in ("older", "foreign"):
        source = older if kind == "older" else checkpoints.step_folder(other, steps[0])
        path = rng.choice([path, newest / checkpoints.POOL, newest / checkpoints.POOL / "manifest.json"])
        found = source / path.relative_to(newest)
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(found, path)
        else:
            path.write_bytes(found.read_bytes() if found.is_file() else b"")
    else:
        content = path.read_bytes()
        at = rng.randrange(len(content))
        flipped = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        swapped = rng.choice(files).read_bytes()
        path.write_bytes({"flip": flipped, "cut": content[:at], "empty": b"", "swap": swapped}[kind])
    return str(path.relative_to(newest))


def resumed(root: Path, run: Path) -> str:
    """A digest of all that a run goes on from; errors as preflight and the trainer raise them."""
    trainer = OmegaConf.create({"resume_mode": "auto", "resume_from_path": None, "default_local_dir": str(root)})
    manifest = read_manifest(checkpoints.step_folder(run, checkpoints.saved_steps(run)[0]) / checkpoints.POOL)
    config = ExperienceConfig(rollout_n=manifest["rollout_n"])
    checkpoints.mark_checkpoint_to_resume(trainer, True, lambda folder: None)
    opened = checkpoints.open_experience(trainer, config, manifest["identity"], Everything())
    folder, held = checkpoints.step_folder(root, opened.step), opened.replay.pool.snapshot()
    rows = [(s, q, t.key, t.log_probs.tobytes(), t.step, t.reward) for s, q, t in held.records(0, 10**9)]
    tensors = [torch.load(path, weights_only=False) for path in sorted(folder.rglob("*.pt"))]
    facts = opened.step, opened.replay.state(), list(held.state), held.history, rows, [flat(each) for each in tensors]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class Everything(frozenset[str]):
    """As if the data had every question."""

    def __contains__(self, question: object) -> bool:
        return True


def flat(value: Any) -> Any:
    """Tensors as bytes, whatever holds them."""
    if isinstance(value, dict):
        return [(key, flat(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [flat(each) for each in value]
    value = value.to_local() if hasattr(value, "to_local") else value
    return hashlib.sha256(value.numpy().tobytes()).digest() if torch.is_tensor(value) else repr(value)


def judge(resume: Callable[[], str], whole: str, lines: list[str]) -> str:
    """What came of a damage."""
    try:
        same = resume() == whole
    except (ValueError, OSError) as error:
        return "noticed" if "\n" not in str(error) else f"many lines {error}"
    except Exception as error:
        return f"traceback {error!r}"
    if any("\n" in line for line in lines):
        return f"many lines {lines}"
    return "noticed" if any("resuming from" in line for line in lines) else "harmless" if same else "accepted"


if __name__ == "__main__":
    main()
