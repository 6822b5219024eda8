"""The experience pool's memory, checkpoints and speed, measured.

    python benchmarks/pool.py [--trajectories 200000] [--tokens 1000] [--runs 5] [--json FILE]

Prints a table; each figure is the median of the runs with the least and the greatest. What is compared (a full save
with one of 2,000 new trajectories, loading with plainly reading the same bytes) is measured in turn in one process. The
file system's cache is as it is: the ratio says what our code adds to reading, not how fast the disk is.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

import exgrpo
from exgrpo.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory

K = 8
NEW = 2000  # trajectories between two checkpoints


def main() -> None:
    """Build a pool, then measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=200_000)
    parser.add_argument("--tokens", type=int, default=1000, help="of each")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to save; default: a temporary one")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        figures = measure(arguments.trajectories, arguments.tokens, arguments.runs, folder)
    finally:
        shutil.rmtree(folder)
    report = {"machine": machine(), "arguments": [arguments.trajectories, arguments.tokens], "figures": figures}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{arguments.trajectories:,} trajectories of {arguments.tokens:,} tokens; {report['machine']}")
    for name, value in figures.items():
        shown = f"{value[0]:,.2f} ({value[1]:,.2f} to {value[2]:,.2f})" if isinstance(value, list) else f"{value:,.3g}"
        print(f"  {name:<58} {shown}")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    described = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line for line in described if line.startswith("model name")), ": unknown")
    return {
        "cpu": model.split(":")[1].strip(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "pyarrow": pyarrow.__version__,
        "exgrpo": exgrpo.__version__,
    }


class Source:
    """Successes of random tokens and log-probs, as many a question as the pool keeps on the average of a run."""

    def __init__(self, tokens: int) -> None:
        self.rng = np.random.default_rng(0)
        self.tokens = tokens
        self.count = 0
        # English text repeats its tokens about like this; log-probs of a sampled token are mostly near 0
        self.vocabulary = (self.rng.zipf(1.2, 4_000_000) % 150_000).astype(np.int32)
        self.log_probs = -self.rng.exponential(0.3, 4_000_000).astype(np.float32)

    def group(self, step: int, size: int = 4) -> RolloutGroup:
        """The successes of one question."""
        starts = self.rng.integers(0, len(self.vocabulary) - self.tokens, (size, 2))
        successes = tuple(
            Trajectory(self.vocabulary[a : a + self.tokens], self.log_probs[b : b + self.tokens], step, 0.3)
            for a, b in starts.tolist()
        )
        self.count += 1
        return RolloutGroup(f"{self.count:032x}", K, successes)


def resident_bytes() -> int:
    """Of this process, by the kernel's account, after what was freed has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(trajectories: int, tokens: int, runs: int, folder: Path) -> dict[str, Any]:
    """name -> figure, or [median, least, greatest]."""
    source = Source(tokens)
    pool = ExperiencePool(ExperienceConfig(rollout_n=K, experience_max_trajectories=10**9, experience_max_bytes=10**15))
    before = resident_bytes()
    for _ in range(trajectories // 4):
        pool.observe(source.group(step=1))
    used = resident_bytes() - before
    figures: dict[str, Any] = {
        "memory, bytes a trajectory beside 8 a token": used / trajectories - 8 * tokens,
        "questions": pool.metrics()["pool_questions"],
    }
    figures |= speeds(pool, source, runs)
    figures |= checkpoints(pool, source, runs, folder)
    return figures


def speeds(pool: ExperiencePool, source: Source, runs: int) -> dict[str, Any]:
    """Drawing a step's questions, adding a group."""
    rng = np.random.default_rng(1)
    short = Source(128)
    short.count = 10**9  # questions of its own
    groups = [short.group(step=2, size=7) for _ in range(50 * runs)]
    draw = [timed(lambda: pool.choose(64, rng))[0] * 1000 for _ in range(50 * runs)]
    add = [timed(lambda group=group: pool.observe(group))[0] * 1000 for group in groups]  # type: ignore[misc]
    return {"draw 64 questions, ms": spread(draw), "add a group of 7 x 128 tokens, ms": spread(add)}


def checkpoints(pool: ExperiencePool, source: Source, runs: int, folder: Path) -> dict[str, Any]:
    """Full saves, saves of what is new, loading, and plain reading of the same files."""
    identity = {"data_fingerprint": "benchmark"}
    full, new, load, read, size = [], [], [], [], 0
    for run in range(runs):
        pool._saved = type(pool._saved)()  # as if nothing were on the disk
        full.append(timed(lambda: pool.save(folder / "full", 1, identity))[0])
        for _ in range(NEW // 4):
            pool.observe(source.group(step=2 + run))
        new.append(timed(lambda: pool.save(folder / "next", 2, identity))[0])
        files = [path for path in (folder / "next").rglob("*") if path.is_file()]
        read.append(timed(lambda: [path.read_bytes() for path in files])[0])  # noqa: B023
        config = pool._config
        load.append(timed(lambda: ExperiencePool.load(folder / "next", config, 2, identity))[0])  # noqa: B023
        size = sum(path.stat().st_size for path in files)
        shutil.rmtree(folder / "full")
        shutil.rmtree(folder / "next")
    return {
        "on disk, GB": size / 1e9,
        "full save, s": spread(full),
        f"save with {NEW:,} new, s": spread(new),
        f"save with {NEW:,} new / full save, %": spread([100 * a / b for a, b in zip(new, full, strict=True)]),
        "plain read of the files, s": spread(read),
        "load, s": spread(load),
        "load / plain read": spread([a / b for a, b in zip(load, read, strict=True)]),
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def spread(values: list[float]) -> list[float]:
    """Median, least, greatest."""
    return [float(np.median(values)), min(values), max(values)]


if __name__ == "__main__":
    main()
