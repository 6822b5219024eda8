"""A pool whose tokens and log-probs are on a disk decides as one in memory, and leaves nothing behind."""

import filecmp
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from exgrpo.experience import packing
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.saved.disk_bodies import DiskBodies, bodies_of
from exgrpo.saved.pool_folder import PoolFolder

K = 4


def config_of(disk=None, **keys):
    keys = {"experience_max_disk_bytes": 10**6, **keys}
    return ExperienceConfig(rollout_n=K, experience_disk=None if disk is None else str(disk), **keys)


def new_pool(config):
    bodies = bodies_of(config)
    if isinstance(bodies, DiskBodies):
        bodies = DiskBodies(bodies.folder, file_bytes=500)  # a few trajectories a file, so that files are given back
    return ExperiencePool(config, bodies)


def fill(pool, steps, seed=0):
    """Groups of random trajectories, some with masks and notes, some of the same tokens; some questions retire."""
    rng = np.random.default_rng(seed)
    for step in range(1, steps + 1):
        for question in rng.choice(12, 4, replace=False):
            solved = int(rng.integers(0, K + 1))
            successes = tuple(trajectory(rng, step) for _ in range(solved))
            if solved < K or rng.random() < 0.2:
                pool.observe(RolloutGroup(f"q{question}", K, successes))
        pool.end_step(step, {})


def trajectory(rng, step):
    length = int(rng.integers(1, 12))
    mask = rng.random(length) < 0.7 if rng.random() < 0.3 else None
    if mask is not None:
        mask[0] = True
    note = "Notiz ü" if rng.random() < 0.3 else None
    tokens, log_probs = rng.integers(0, 2, length), -rng.exponential(0.3, length)
    return Trajectory(tokens, log_probs, step, float(rng.gamma(4, 0.1)), mask, float(rng.random()), note)


def contents(pool):
    shown = {}
    for question in pool:
        for one in pool.candidates(question):
            mask = None if one.loss_mask is None else one.loss_mask.tolist()
            row = (one.tokens.tolist(), one.log_probs.tolist(), one.step, one.entropy, mask, one.reward, one.note)
            shown.setdefault(question, []).append(row)
    return shown


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"experience_max_trajectories": 9},
        {"experience_max_per_question": 2, "exp_eviction": "oldest"},
        {"experience_max_per_question": 2},
        {"experience_max_age": 3},
    ],
)
def test_decisions_contents_and_checkpoints_are_those_of_a_pool_in_memory(tmp_path, keys):
    pools = [new_pool(config_of(None, **keys)), new_pool(config_of(tmp_path / "disk", **keys))]
    drawn = []
    for pool in pools:
        fill(pool, 30)
        pool.check_invariants()
        drawn.append(pool.choose(6, np.random.default_rng(0)))
    assert drawn[0] == drawn[1]
    assert contents(pools[0]) == contents(pools[1]) and len(contents(pools[0])) > 3
    metrics = [pool.metrics() for pool in pools]
    assert (
        metrics[1].pop("pool_disk_bytes")
        == metrics[0]["pool_bytes"] - (200 - packing.HEADER.size) * metrics[0]["pool_trajectories"]
    )
    assert metrics[1].pop("pool_bytes") == 220 * metrics[0]["pool_trajectories"]
    assert metrics[0].pop("pool_bytes") and metrics[0] == metrics[1]
    for name, pool in zip(("memory", "disk"), pools, strict=True):
        PoolFolder().save(pool, tmp_path / name / "pool", 30, {})
    segments = [sorted((tmp_path / name / "pool" / "trajectories").iterdir()) for name in ("memory", "disk")]
    assert [one.name for one in segments[0]] == [one.name for one in segments[1]]
    assert all(filecmp.cmp(a, b, shallow=False) for a, b in zip(*segments, strict=True))


def test_a_run_may_move_its_pool_to_a_disk_and_back(tmp_path):
    in_memory, on_disk = config_of(), config_of(tmp_path / "disk")
    pool = ExperiencePool(in_memory)
    fill(pool, 20)
    for step, config in enumerate((on_disk, in_memory, on_disk), start=1):
        PoolFolder().save(pool, tmp_path / "pool", step, {})
        loaded = PoolFolder().load(tmp_path / "pool", config, step, {})
        loaded.check_invariants()
        assert contents(loaded) == contents(pool)
        fill(pool, 5, seed=step)
        fill(loaded, 5, seed=step)
        assert contents(loaded) == contents(pool)
        pool = loaded


def test_trajectories_read_from_the_disk_stay_as_they_are_when_the_pool_changes(tmp_path):
    pool = new_pool(config_of(tmp_path, experience_max_trajectories=6))
    fill(pool, 5)
    question = next(iter(pool))
    before = pool.candidates(question)
    shown = [one.tokens.tolist() for one in before]
    fill(pool, 30, seed=1)
    assert [one.tokens.tolist() for one in before] == shown


def test_files_take_at_most_twice_their_contents_and_one_file_more(tmp_path):
    bodies = DiskBodies(tmp_path, file_bytes=500)
    rng = np.random.default_rng(0)
    entries = []
    for serial in range(400):
        entries.append(bodies.keep(packing.pack(serial, trajectory(rng, serial))))
        if len(entries) > 20:
            bodies.drop(entries.pop(int(rng.integers(len(entries)))))
        assert bodies.file_bytes <= 2 * bodies.disk_bytes + 500 + 200
    assert [packing.serial(bodies.read(entry)) for entry in entries] == [packing.serial(entry) for entry in entries]
    for entry in entries:
        bodies.drop(entry)
    assert bodies.disk_bytes == 0


def test_what_the_disk_takes_in_several_writes_is_read_as_one(tmp_path, monkeypatch):
    real, rng = os.pwrite, np.random.default_rng(0)
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: real(file, content[:30], at))
    bodies = DiskBodies(tmp_path)
    packed = [packing.pack(serial, trajectory(rng, serial)) for serial in range(5)]
    assert [bodies.read(entry) for entry in map(bodies.keep, packed)] == packed and min(map(len, packed)) > 60


def test_the_folder_is_empty_while_the_pool_is_used_and_after_a_kill(tmp_path):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); import test_disk_bodies as t\n"
        "pool = t.new_pool(t.config_of(sys.argv[1])); t.fill(pool, 20); print('filled', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path), os.path.dirname(__file__)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "filled\n"
        assert list(tmp_path.iterdir()) == []
        held = [os.readlink(f"/proc/{process.pid}/fd/{name}") for name in os.listdir(f"/proc/{process.pid}/fd")]
        assert any(path.startswith(f"{tmp_path}/") for path in held)  # on this disk, without a name
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_in_one_line(tmp_path):
    code = (
        "import sys, resource, signal; sys.path.insert(0, sys.argv[2]); import test_disk_bodies as t\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "t.fill(t.new_pool(t.config_of(sys.argv[1])), 20)"
    )
    command = [sys.executable, "-c", code, str(tmp_path), os.path.dirname(__file__)]
    error = subprocess.run(command, capture_output=True, text=True).stderr.splitlines()[-1]
    assert f"trainer.experience_disk={tmp_path}: a trajectory of" in error and "(File too large, " in error


def test_what_cannot_be_used_is_refused_by_name(tmp_path):
    (tmp_path / "file").touch()
    for config, message in [
        (config_of(tmp_path / "file" / "x"), "file must be a folder that can be written"),
        (config_of(tmp_path / "new", experience_max_disk_bytes=10**15), "bytes free; must be at most that"),
    ]:
        with pytest.raises(ValueError, match=message):
            bodies_of(config)
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"trainer.experience_disk=\S+: must be null, this pool is in memory"):
        ExperiencePool(config_of(tmp_path))
