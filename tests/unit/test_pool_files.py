"""The saved pool: the same next draws, the same bytes, and one whole state whatever moment a save is killed at."""

import builtins
import contextlib
import io
import itertools
import json
import os
import shutil

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from exgrpo.config import ExperienceConfig
from exgrpo.experience import pool_files
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory

CONFIG = ExperienceConfig(rollout_n=8, experience_max_trajectories=120)
IDENTITY = {"data": "fingerprint", "questions": 40}
FILES = ("trajectories.parquet", "questions.parquet")


def live(pool, seed, steps=120):
    """Let the pool see random groups of 40 questions; every kind of outcome, eviction and duplicate occurs."""
    rng = np.random.default_rng(seed)
    for step in range(steps):
        solved = int(rng.integers(0, 9 if rng.random() < 0.2 else 8))
        successes = []
        for _ in range(solved):
            length = int(rng.integers(1, 4))
            entropy = float("nan") if rng.random() < 0.2 else float(rng.random())
            successes.append(Trajectory(rng.integers(0, 6, length), -rng.random(length), step, entropy))
        pool.observe(RolloutGroup(f"q{rng.integers(40)}", 8, tuple(successes)))
    return pool


def lived(seed=0, config=CONFIG):
    return live(ExperiencePool(config), seed)


def draws(pool, seed=7):
    """The next draws and what they offer: the identity of a pool, as far as training can see."""
    rng = np.random.default_rng(seed)
    chosen = [pool.choose(5, rng, exclude={"q1", "q2"}) for _ in range(20)]
    rows = [(t.tokens.tolist(), t.log_probs.tolist(), t.step, repr(t.entropy)) for t in offered(pool, chosen)]
    return chosen, rows


def offered(pool, chosen):
    questions = [question for drawn in chosen for question in drawn]
    return [trajectory for question in questions for trajectory in pool.candidates(question)]


def load(folder, **changes):
    return ExperiencePool.load(folder, CONFIG, {**IDENTITY, **changes})


@pytest.mark.parametrize("sample_range", ["all", "first_half", "last_half"])
def test_a_reloaded_pool_makes_the_same_draws_now_and_later(tmp_path, sample_range):
    config = ExperienceConfig(rollout_n=8, experience_max_trajectories=120, exp_sample_range=sample_range)
    pool = lived(config=config)
    pool.save(tmp_path / "pool", **IDENTITY)
    loaded = ExperiencePool.load(tmp_path / "pool", config, IDENTITY)
    loaded.check_invariants()
    assert len(set(map(tuple, draws(pool)[0]))) > 1
    assert draws(loaded) == draws(pool) and loaded.metrics() == pool.metrics()
    assert (
        pool.metrics()["evicted"] > 0 and pool.metrics()["duplicates"] > 0 and pool.metrics()["retired_questions"] > 0
    )
    live(pool, seed=1)
    live(loaded, seed=1)
    assert draws(loaded) == draws(pool) and loaded.metrics() == pool.metrics()


def test_saving_again_gives_the_same_bytes(tmp_path):
    lived().save(tmp_path / "one", **IDENTITY)
    load(tmp_path / "one").save(tmp_path / "two", **IDENTITY)
    for name in (*FILES, "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_many_batches_are_one_pool(tmp_path, monkeypatch):
    pool = lived()
    monkeypatch.setattr(pool_files, "_BATCH", 7)
    pool.save(tmp_path / "pool", **IDENTITY)
    assert pyarrow.parquet.ParquetFile(tmp_path / "pool" / FILES[0]).num_row_groups > 10
    assert draws(load(tmp_path / "pool")) == draws(pool)
    for batch in (3, 10, 1000):  # batches that do not begin where row groups do
        monkeypatch.setattr(pool_files, "_BATCH", batch)
        assert draws(load(tmp_path / "pool")) == draws(pool)


def test_rows_of_a_slice_are_its_own():
    column = pyarrow.array([[1], [2, 3], [4], [5, 6]])[1:3]
    assert [row.tolist() for row in pool_files._rows(column)] == [[2, 3], [4]]


def test_an_empty_pool_can_be_saved(tmp_path):
    ExperiencePool(CONFIG).save(tmp_path / "pool", **IDENTITY)
    assert load(tmp_path / "pool").metrics() == ExperiencePool(CONFIG).metrics()


def test_pandas_reads_it_in_one_line(tmp_path):
    pool = ExperiencePool(CONFIG)
    successes = (Trajectory([5, 6], [-0.5, -1.0], 3, 0.25), Trajectory([7], [-2.0], 3))
    pool.observe(RolloutGroup("q", 8, successes))
    pool.save(tmp_path / "pool")
    frame = pandas.read_parquet(tmp_path / "pool" / "trajectories.parquet")
    assert list(frame) == ["question", "bucket", "step", "entropy", "tokens", "log_probs"]
    assert frame["tokens"].map(list).tolist() == [[5, 6], [7]] and frame["tokens"][0].dtype == np.int32
    assert frame["log_probs"].map(list).tolist() == [[-0.5, -1.0], [-2.0]] and frame["log_probs"][0].dtype == np.float32
    assert frame["entropy"][0] == 0.25 and np.isnan(frame["entropy"][1])
    assert frame[["question", "bucket", "step"]].drop_duplicates().values.tolist() == [["q", 2, 3]]
    manifest = json.loads((tmp_path / "pool" / "manifest.json").read_text())
    assert manifest["counts"] == {"questions": 1, "retired": 0, "trajectories": 2}
    assert (manifest["format_version"], manifest["rollout_n"]) == (1, 8)


def test_tighter_bounds_hold_after_loading(tmp_path):
    pool = lived()
    pool.save(tmp_path / "pool", **IDENTITY)
    tight = ExperienceConfig(rollout_n=8, experience_max_per_question=2, experience_max_trajectories=20)
    loaded = ExperiencePool.load(tmp_path / "pool", tight, IDENTITY)
    loaded.check_invariants()
    before, after = pool.metrics(), loaded.metrics()
    assert after["pool_trajectories"] == 20
    assert after["evicted"] - before["evicted"] == before["pool_trajectories"] - 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "other"}, "identity data is 'fingerprint', expected 'other'"),
        ({"more": 1}, "identity more is None, expected 1"),
        ({"questions": "40"}, "identity questions is 40, expected '40'"),
    ],
)
def test_another_identity_is_refused_with_both_sides(tmp_path, changes, message):
    lived().save(tmp_path / "pool", **IDENTITY)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "pool", **changes)


def test_another_rollout_n_or_format_is_refused_with_both_sides(tmp_path):
    lived().save(tmp_path / "pool", **IDENTITY)
    with pytest.raises(ValueError, match="rollout_n is 8, expected 4"):
        ExperiencePool.load(tmp_path / "pool", ExperienceConfig(rollout_n=4), IDENTITY)
    manifest = tmp_path / "pool" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(ValueError, match="format_version is 2, expected 1"):
        load(tmp_path / "pool")


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused(tmp_path, name):
    lived().save(tmp_path / "pool", **IDENTITY)
    damaged = bytearray((tmp_path / "pool" / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "pool" / name).write_bytes(damaged)
    with pytest.raises(ValueError, match=f"sha256 of {name} is '[0-9a-f]+', expected '[0-9a-f]+'"):
        load(tmp_path / "pool")


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_missing_file_is_named(tmp_path, name):
    lived().save(tmp_path / "pool", **IDENTITY)
    (tmp_path / "pool" / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load(tmp_path / "pool")


def test_an_identity_that_is_not_json_leaves_the_old_state(tmp_path):
    pool = lived()
    pool.save(tmp_path / "pool", **IDENTITY)
    with pytest.raises(TypeError):
        pool.save(tmp_path / "pool", data=object())
    assert draws(load(tmp_path / "pool")) == draws(pool)


class Killed(BaseException):
    """Not an Exception, like a kill: nothing may tidy up after it."""


DISK = [(builtins, "open"), (io, "open"), *((os, name) for name in ("mkdir", "fsync", "rename", "unlink", "rmdir"))]
DISK += [(shutil, "rmtree"), (pyarrow.parquet.ParquetWriter, "write_table"), (pyarrow.parquet.ParquetWriter, "close")]


def saved_until(moment, monkeypatch, pool, folder):
    """Save, but die instead of the moment-th call, from 0, that touches the disk. True if there are fewer calls."""
    calls = itertools.count()

    def mortal(real):
        def call(*args, **kwargs):
            if next(calls) == moment:
                raise Killed
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        for owner, name in DISK:
            patch.setattr(owner, name, mortal(getattr(owner, name)))
        pool.save(folder, **IDENTITY)
        return True
    return False


def test_a_save_killed_at_any_moment_leaves_the_old_state_or_the_new(tmp_path, monkeypatch):
    old, new = lived(0), lived(1)
    wanted = {"old": draws(old), "new": draws(new)}
    seen = []
    for moment in range(100):
        folder = tmp_path / str(moment) / "pool"
        old.save(folder, **IDENTITY)
        whole = saved_until(moment, monkeypatch, new, folder)
        state = draws(load(folder))
        assert state in wanted.values(), f"neither state after a kill at call {moment}"
        seen.append("new" if state == wanted["new"] else "old")
        new.save(folder, **IDENTITY)  # and the next save finds nothing in its way
        assert draws(load(folder)) == wanted["new"]
        assert [path.name for path in folder.parent.iterdir()] == ["pool"]
        if whole:
            break
    assert whole and len(seen) > 20
    assert seen == sorted(seen, reverse=True) and seen[0] == "old" and seen[-1] == "new"


def test_a_first_save_killed_at_any_moment_leaves_nothing_or_the_whole(tmp_path, monkeypatch):
    pool = lived()
    for moment in range(100):
        folder = tmp_path / str(moment) / "pool"
        if saved_until(moment, monkeypatch, pool, folder):
            break
        if folder.exists():
            assert draws(load(folder)) == draws(pool)
        else:
            with pytest.raises(FileNotFoundError, match=r"manifest\.json"):
                load(folder)
    assert 10 < moment < 99
