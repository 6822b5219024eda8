"""Pools of random groups, saved and loaded, for the tests of saved pools."""

import weakref
import zipfile

import numpy as np

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.saved.pool_folder import PoolFolder

CONFIG = ExperienceConfig(rollout_n=8, experience_max_trajectories=120)
IDENTITY = {"data": "fingerprint", "questions": 40}
DISKS = weakref.WeakKeyDictionary()  # pool -> what saves it


def live(pool, seed, steps=120):
    """Let the pool see random groups of 40 questions; every kind of outcome, eviction and duplicate
    occurs.
    """
    rng = np.random.default_rng(seed)
    for step in range(steps):
        solved = int(rng.integers(0, 9 if rng.random() < 0.2 else 8))
        successes = []
        for _ in range(solved):
            length = int(rng.integers(1, 4))
            entropy = float("nan") if rng.random() < 0.2 else float(rng.random())
            successes.append(
                Trajectory(rng.integers(0, 6, length), -rng.random(length), step, entropy)
            )
        pool.observe(RolloutGroup(f"q{rng.integers(40)}", 8, tuple(successes)))
    return pool


def lived(seed=0, config=CONFIG):
    return live(ExperiencePool(config), seed)


def draws(pool, seed=7):
    """The next draws and what they offer: the identity of a pool, as far as training can see."""
    rng = np.random.default_rng(seed)
    chosen = [pool.choose(5, rng, exclude={"q1", "q2"}) for _ in range(20)]
    rows = [
        (t.tokens.tolist(), t.log_probs.tolist(), t.step, repr(t.entropy))
        for t in offered(pool, chosen)
    ]
    return chosen, rows


def offered(pool, chosen):
    questions = [question for drawn in chosen for question in drawn]
    return [trajectory for question in questions for trajectory in pool.candidates(question)]


def save(pool, folder, step=0):
    DISKS.setdefault(pool, PoolFolder()).save(pool, folder, step, IDENTITY, {"mixing": True})


def load(folder, config=CONFIG, step=0, **changes):
    disk = PoolFolder()
    pool = disk.load(folder, config, step, {**IDENTITY, **changes})
    DISKS[pool] = disk
    return pool


def archive(path, content="x"):
    """A file as torch saves it."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data", content)


def files(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
