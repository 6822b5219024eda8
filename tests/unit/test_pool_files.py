"""The saved pool: the same next draws, the same bytes, and only what is new is written."""

import itertools
import json
import os
import tempfile
from pathlib import Path

import invariants
import numpy as np
import pandas
import pytest
from saved_pools import CONFIG, draws, files, live, lived, load, save

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.saved import pool_segments
from exgrpo.saved.pool_files import read_saved
from exgrpo.saved.pool_segments import Segment, plan


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of a few rows, so that a small pool has many and compaction has work."""
    monkeypatch.setattr(pool_segments, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(pool_segments, "_BATCH", 7)


@pytest.mark.parametrize("sample_range", ["all", "first_half", "last_half"])
def test_a_reloaded_pool_makes_the_same_draws_now_and_later(tmp_path, sample_range):
    config = ExperienceConfig(
        rollout_n=8, experience_max_trajectories=120, exp_sample_range=sample_range
    )
    pool = lived(config=config)
    save(pool, tmp_path / "pool")
    loaded = load(tmp_path / "pool", config)
    invariants.check(loaded)
    assert len(set(map(tuple, draws(pool)[0]))) > 1
    assert draws(loaded) == draws(pool) and loaded.metrics() == pool.metrics()
    counters = pool.metrics()
    assert all(
        counters[name] > 0
        for name in ("evicted", "duplicates", "retired_questions", "retired_trajectories")
    )
    live(pool, seed=1)
    live(loaded, seed=1)
    assert draws(loaded) == draws(pool) and loaded.metrics() == pool.metrics()


def test_saving_again_gives_the_same_bytes(tmp_path):
    save(lived(), tmp_path / "one")
    save(load(tmp_path / "one"), tmp_path / "two")
    assert len(files(tmp_path / "one")) == 6
    for name in files(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_an_interrupted_life_leaves_the_same_bytes_as_an_unbroken_one(tmp_path, small_segments):
    unbroken = resumed = ExperiencePool(CONFIG)
    for step in range(12):
        live(unbroken, seed=step, steps=10)
        unbroken.end_step(step, {"fresh_score": step / 12})
        save(unbroken, tmp_path / "unbroken" / str(step), step)
    for step in range(12):
        resumed = (
            load(tmp_path / "resumed" / str(step - 1), step=step - 1)
            if step
            else ExperiencePool(CONFIG)
        )
        live(resumed, seed=step, steps=10)
        resumed.end_step(step, {"fresh_score": step / 12})
        save(resumed, tmp_path / "resumed" / str(step), step)
    names = files(tmp_path / "unbroken" / "11")
    assert names == files(tmp_path / "resumed" / "11") and len(names) > 6
    for name in names:
        assert (tmp_path / "unbroken" / "11" / name).read_bytes() == (
            tmp_path / "resumed" / "11" / name
        ).read_bytes()


def test_a_checkpoint_writes_what_is_new_and_links_the_rest(tmp_path):
    pool = ExperiencePool(ExperienceConfig(rollout_n=8))
    for step in range(6):
        for question in range(20):
            trajectory = Trajectory([step, question], [-1.0, -1.0], step)
            pool.observe(RolloutGroup(f"q{question}", 8, (trajectory,)))
        save(pool, tmp_path / str(step), step)
    first, last = (tmp_path / name / "trajectories" for name in ("0", "5"))
    old = [path for path in sorted(last.iterdir()) if path.stat().st_nlink > 1]
    new = [path for path in sorted(last.iterdir()) if path.stat().st_nlink == 1]
    assert len(old) == 5 and len(new) == 1
    assert os.path.samefile(old[0], next(first.iterdir()))
    assert pandas.read_parquet(new[0])["step"].tolist() == [5] * 20
    # the checkpoint before may go: what is linked stays
    for path in sorted((tmp_path / "0").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert len(load(tmp_path / "5", ExperienceConfig(rollout_n=8), 5).candidates("q3")) == 6


def test_without_hard_links_segments_are_copied(tmp_path, monkeypatch):
    pool = lived()
    save(pool, tmp_path / "one")

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    save(live(pool, 1, steps=5), tmp_path / "two")
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "two" / "trajectories").iterdir())
    assert draws(load(tmp_path / "two")) == draws(pool)


def test_a_pool_from_another_disk_is_saved_on_this_one(tmp_path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if os.stat(elsewhere).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("memory and temporary files are one file system here")
        save(lived(), Path(elsewhere, "pool"))
        pool = load(Path(elsewhere, "pool"))
        save(pool, tmp_path / "pool")
    assert draws(load(tmp_path / "pool")) == draws(pool)


def test_a_vanished_segment_is_written_anew(tmp_path):
    pool = lived()
    save(pool, tmp_path / "one")
    next((tmp_path / "one" / "trajectories").iterdir()).unlink()
    save(pool, tmp_path / "two")
    assert draws(load(tmp_path / "two")) == draws(pool)


def test_segments_stay_few_and_mostly_alive(tmp_path, small_segments):
    pool = ExperiencePool(CONFIG)
    most = 0
    for step in range(150):
        live(pool, seed=step, steps=4)
        save(pool, tmp_path / "pool")
        saved = read_saved(tmp_path / "pool").on_disk.segments
        assert [a.last < b.first for a, b in itertools.pairwise(saved)] == [True] * (len(saved) - 1)
        rows = sum(segment.rows for segment in saved)
        assert rows <= 2 * pool.metrics()["pool_trajectories"] + 4 * 8
        most = max(most, len(saved))
        if step % 10 == 0:
            assert draws(load(tmp_path / "pool")) == draws(pool)
    # 120 trajectories of about two tokens are at most 8 segments above half the size, with a small
    # one in each gap
    assert 4 < most <= 8 + 9


@pytest.mark.parametrize(("alive", "is_linked"), [(5, True), (4, False)])
def test_a_segment_that_is_more_than_half_dead_is_written_anew(alive, is_linked):
    segment = Segment("segment-000000000000.parquet", 0, 9, 10, 1000, "")
    (piece,) = plan([segment], np.arange(alive), 10, mean_bytes=100.0)
    assert (piece.segment is segment) is is_linked and piece.bytes == 100 * alive


def test_a_segment_ends_where_its_size_does(tmp_path, small_segments):
    pool = lived()
    save(pool, tmp_path / "pool")
    saved = read_saved(tmp_path / "pool").on_disk.segments
    assert len(saved) > 2 and all(500 <= segment.bytes < 500 + 7 * 8 * 3 for segment in saved[:-1])
    assert draws(load(tmp_path / "pool")) == draws(pool)


def test_an_empty_pool_can_be_saved(tmp_path):
    save(ExperiencePool(CONFIG), tmp_path / "pool")
    assert load(tmp_path / "pool").metrics() == ExperiencePool(CONFIG).metrics()


COLUMNS = ["serial", "question", "step", "entropy", "tokens", "log_probs"]


def test_pandas_reads_it_in_one_line(tmp_path):
    pool = ExperiencePool(CONFIG)
    pool.observe(RolloutGroup("gone", 8, (Trajectory([1], [-1.0], 1),)))
    pool.observe(
        RolloutGroup(
            "q", 8, (Trajectory([5, 6], [-0.5, -1.0], 3, 0.25), Trajectory([7], [-2.0], 3))
        )
    )
    save(pool, tmp_path / "one")
    pool.observe(RolloutGroup("gone", 8, tuple(Trajectory([i], [-1.0], 4) for i in range(8))))
    pool.file("q", 2, Trajectory.without_log_probs([8], 5))
    save(pool, tmp_path / "two")
    folder = tmp_path / "two"
    frame = pandas.read_parquet(f"{folder}/trajectories").merge(
        pandas.read_parquet(f"{folder}/live.parquet")
    )
    assert list(frame) == [*COLUMNS, "loss_mask", "reward", "note", "grader"]
    assert (
        frame["tokens"].map(list).tolist() == [[5, 6], [7], [8]]
        and frame["tokens"][0].dtype == np.int32
    )
    assert frame["log_probs"][:2].map(list).tolist() == [[-0.5, -1.0], [-2.0]]
    assert frame["log_probs"][2] is None and frame["log_probs"][0].dtype == np.float32
    assert frame["entropy"][0] == 0.25 and np.isnan(frame["entropy"][1])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["counts"] == {"questions": 1, "retired": 1, "trajectories": 3, "tokens": 4}
    assert (manifest["format_version"], manifest["rollout_n"], manifest["step"]) == (4, 8, 0)
    assert not load(folder).candidates("q")[2].has_log_probs


def test_tighter_bounds_hold_after_loading(tmp_path):
    pool = lived()
    save(pool, tmp_path / "pool")
    tight = ExperienceConfig(
        rollout_n=8, experience_max_per_question=2, experience_max_trajectories=20
    )
    loaded = load(tmp_path / "pool", tight)
    invariants.check(loaded)
    before, after = pool.metrics(), loaded.metrics()
    assert after["pool_trajectories"] == 20
    assert after["evicted"] - before["evicted"] == before["pool_trajectories"] - 20
