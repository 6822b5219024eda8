"""The experience pool's memory, checkpoints and speed, measured at several sizes.

    python lab/benchmarks/pool.py [--questions 1000 20000 200000] [--tokens 128] [--runs 5] [--json FILE]
    python lab/benchmarks/pool.py --questions 50000 --tokens 1000        200,000 trajectories of a typical length

The questions have 1 to 7 trajectories each, 4 on average, so that every bucket is filled. Comparisons (a full save with
one of 2,000 new trajectories, loading with plainly reading the same bytes) are measured alternately in one process. The
file system's cache is not cleared: the ratio shows what our code adds to reading, not how fast the disk is.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import benchmark_folders  # noqa: F401
import numpy as np
from common import Figures, at_least, machine, parser, ratios, report, resident_bytes, spread, timed

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.experience.trajectory_selector import TrajectorySelector
from exgrpo.saved.pool_folder import PoolFolder

K = 8
NEW = 2000  # trajectories between two checkpoints
DRAWN = 64  # questions of a step: half of 128
REPEATS = 50  # in each run, of operations that take less than a millisecond


def main() -> None:
    """Measure each size in turn."""
    arguments = parser(__doc__)
    arguments.add_argument("--questions", type=at_least(DRAWN), nargs="+", default=[1000, 20_000, 200_000])
    arguments.add_argument("--tokens", type=at_least(1), default=128, help="of each trajectory")
    arguments.add_argument("--runs", type=at_least(1), default=5)
    arguments.add_argument("--folder", type=Path, help="where to save; default: a temporary one")
    options = arguments.parse_args()
    facts = machine("numpy", "pyarrow")
    figures: Figures = {}
    for questions in options.questions:
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            measured = measure(questions, options.tokens, options.runs, folder)
        finally:
            shutil.rmtree(folder)
        figures |= {f"{questions:>7,} questions: {name}": value for name, value in measured.items()}
    report(f"pool, trajectories of {options.tokens:,} tokens", figures, facts, options)


class Source:
    """Groups of random tokens and log-probs, each of a new question."""

    def __init__(self, tokens: int, first: int = 0) -> None:
        self.rng = np.random.default_rng(first)
        self.tokens = tokens
        self.count = first
        # tokens repeat about as in English text; log-probs of sampled tokens are mostly near 0
        self.vocabulary = (self.rng.zipf(1.2, 4_000_000) % 150_000).astype(np.int32)
        self.log_probs = -self.rng.exponential(0.3, 4_000_000).astype(np.float32)

    def group(self, step: int, size: int | None = None) -> RolloutGroup:
        """The successes of one question: ``size``, or by default 1 to 7 in rotation."""
        size = size or self.count % (K - 1) + 1
        starts = self.rng.integers(0, len(self.vocabulary) - self.tokens, (size, 2))
        entropies = self.rng.gamma(4, 0.1, size)
        successes = tuple(
            Trajectory(self.vocabulary[a : a + self.tokens], self.log_probs[b : b + self.tokens], step, entropy)
            for (a, b), entropy in zip(starts.tolist(), entropies.tolist(), strict=True)
        )
        self.count += 1
        return RolloutGroup(f"{self.count:032x}", K, successes)


def measure(questions: int, tokens: int, runs: int, folder: Path) -> Figures:
    """name -> figure, for a pool of one size."""
    source, repeats = Source(tokens), runs * REPEATS
    # The bound is reached after `repeats` more groups, so that adding is timed first without and then with eviction.
    filled = sum(number % (K - 1) + 1 for number in range(questions))
    bound = filled + (K - 1) * repeats
    config = ExperienceConfig(
        rollout_n=K,
        experience_max_trajectories=bound,
        experience_max_bytes=10**15,
    )
    pool = ExperiencePool(config)
    before = resident_bytes()
    for _ in range(questions):
        pool.observe(source.group(step=1))
    used, held = resident_bytes() - before, pool.metrics()
    trajectories = held["pool_trajectories"]
    return {
        "trajectories": trajectories,
        "memory, bytes a token": used / held["pool_tokens"],
        "memory, bytes a trajectory beside 8 a token": used / trajectories - 8 * tokens,
        **speeds(pool, repeats),
        **checkpoints(pool, config, source, runs, folder),
    }


def speeds(pool: ExperiencePool, repeats: int) -> Figures:
    """The driver's operations on the pool in a step, in milliseconds; the pool has room for `repeats` more groups."""
    rng = np.random.default_rng(1)
    selector = TrajectorySelector("ent", "argmin")
    short = Source(128, first=10**9)

    def select(drawn: list[str]) -> None:
        for question in drawn:
            entropies = [trajectory.entropy for trajectory in pool.candidates(question)]
            selector.choose(np.array(entropies), rng)

    drawn = [timed(lambda: pool.choose(DRAWN, rng)) for _ in range(repeats)]
    selected = [timed(lambda questions=questions: select(questions))[0] for _, questions in drawn]  # type: ignore[misc]
    added = [_observed(pool, short.group(step=2, size=K - 1)) for _ in range(repeats)]
    closed = [timed(lambda: pool.end_step(2, {}))[0] for _ in range(repeats)]
    # the bound is reached: from here on each new group evicts another
    evicted = [_observed(pool, short.group(step=2, size=K - 1)) for _ in range(repeats)]
    seconds = {
        f"draw {DRAWN}, ms": [second for second, _ in drawn],
        f"candidates of {DRAWN} and choice by score, no model, ms": selected,
        "add 7 x 128 tokens, ms": added,
        "add 7 x 128 tokens and evict as many, ms": evicted,
        "close a step (ages, metrics), ms": closed,
    }
    return {name: spread([1000 * second for second in values]) for name, values in seconds.items()}


def _observed(pool: ExperiencePool, group: RolloutGroup) -> float:
    return timed(lambda: pool.observe(group))[0]


def checkpoints(pool: ExperiencePool, config: ExperienceConfig, source: Source, runs: int, folder: Path) -> Figures:
    """Full saves, saves of new trajectories, loading, and plain reading of the same files."""
    identity = {"data_fingerprint": "benchmark"}
    full, new, load, read, size = [], [], [], [], 0
    for run in range(runs):
        disk = PoolFolder()  # a new one links nothing, so the next save is full
        full.append(timed(lambda: disk.save(pool, folder / "full", 1, identity))[0])  # noqa: B023
        for _ in range(NEW // 4):
            pool.observe(source.group(step=2 + run, size=4))
        new.append(timed(lambda: disk.save(pool, folder / "next", 2, identity))[0])  # noqa: B023
        files = [path for path in (folder / "next").rglob("*") if path.is_file()]
        read.append(timed(lambda: sum(len(path.read_bytes()) for path in files))[0])  # noqa: B023
        load.append(timed(lambda: PoolFolder().load(folder / "next", config, 2, identity))[0])
        size = sum(path.stat().st_size for path in files)
        shutil.rmtree(folder / "full")
        shutil.rmtree(folder / "next")
    return {
        "on disk, GB": size / 1e9,
        "full save, s": spread(full),
        f"save with {NEW:,} new, s": spread(new),
        f"save with {NEW:,} new / full save": ratios(new, full),
        "plain read of the files, s": spread(read),
        "load, s": spread(load),
        "load / plain read": ratios(load, read),
    }


if __name__ == "__main__":
    main()
