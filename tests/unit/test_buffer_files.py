"""A buffer on disk: it goes on as if it had never been put down, a save is whole or absent, what is
wrong is named.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from buffer_rows import ALL, level_of, right

from exgrpo.buffer import DifficultyBucketer, TrajectoryBuffer
from exgrpo.buffer.strategies import STRATEGIES
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.saved.pool_files import DamagedPool
from exgrpo.saved.pool_folder import PoolFolder

GOLDEN = Path(__file__).parents[1] / "golden" / "format4"


def filled():
    rng = np.random.default_rng(0)
    buffer = TrajectoryBuffer(max_size=60, max_per_question=4, max_age=30, difficulty_tiers=4)
    for number in range(400):
        tokens = rng.integers(0, 99, rng.integers(1, 6))
        row = right(f"q{rng.integers(25)}", f"r{number}", rng.random(), step=number // 10)
        row |= {
            "is_correct": rng.random() < 0.5,
            "tokens": tokens,
            "log_probs": -rng.random(len(tokens)),
        }
        buffer.add(row)
    return buffer


def texts(batch):
    """Everything of a batch, comparable."""
    return repr(
        [
            (name, getattr(value, "tolist", lambda value=value: value)())
            for name, value in vars(batch).items()
        ]
    )


def plain(column):
    """A column of a batch as JSON has it, comparable."""
    return repr([getattr(value, "tolist", lambda value=value: value)() for value in column])


def test_a_loaded_buffer_goes_on_to_the_last_bit(tmp_path):
    buffer = filled()
    buffer.sample(size=3)
    for _ in range(3):  # saved, loaded and saved again
        buffer.save(tmp_path / "b")
        loaded = TrajectoryBuffer.load(tmp_path / "b")
        assert (len(loaded), loaded.policy_snapshot) == (len(buffer), buffer.policy_snapshot)
        assert loaded.entropy_thresholds() == buffer.entropy_thresholds()
        for strategy in STRATEGIES:
            assert texts(buffer.sample(strategy, 4)) == texts(loaded.sample(strategy, 4))
        for each in (buffer, loaded):
            each.add(right("new", "text"))
            each.add(right("q3") | {"is_correct": False})
        assert texts(buffer.sample(size=5, **ALL)) == texts(loaded.sample(size=5, **ALL))
        buffer = loaded
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "b").iterdir())
    assert names == ["pool", "windows"]


def test_what_was_evicted_is_not_saved(tmp_path):
    buffer = filled()
    buffer.save(tmp_path / "b")
    rows = pyarrow.parquet.read_table(tmp_path / "b" / "pool" / "trajectories")
    assert rows.num_rows == len(buffer) == 60
    assert json.loads(rows["note"][0].as_py())["rollout"].startswith("r")


def test_a_save_that_fails_before_its_commit_leaves_the_last_one(tmp_path, monkeypatch):
    buffer = filled()
    buffer.save(tmp_path / "b")
    mine = tmp_path / "b" / "windows-of-mine.parquet"
    mine.touch()
    before = texts(TrajectoryBuffer.load(tmp_path / "b").sample(size=9, **ALL))
    buffer.add(right("new"))

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PoolFolder, "save", full)
        with pytest.raises(OSError, match="No space left"):
            buffer.save(tmp_path / "b")
    assert texts(TrajectoryBuffer.load(tmp_path / "b").sample(size=9, **ALL)) == before
    buffer.save(tmp_path / "b")
    assert len(TrajectoryBuffer.load(tmp_path / "b")) == len(buffer)
    assert len(list((tmp_path / "b").iterdir())) == 3 and mine.exists()


def test_a_kill_at_any_moment_leaves_the_last_save_or_this_one(tmp_path):
    buffer, moments = filled(), []
    buffer.save(tmp_path / "now" / "b")
    before = buffer.rng.bit_generator.state
    buffer.add(right("new", "text"))
    buffer.sample(size=3)

    calls = {
        name: getattr(os, name)
        for name in ("rename", "replace", "link", "unlink", "rmdir", "fsync", "mkdir")
    }

    def photographed(name):
        def do(*arguments, **more):
            for each, call in calls.items():  # copytree makes such calls of its own
                setattr(os, each, call)
            moments.append(tmp_path / "moments" / str(len(moments)))
            shutil.copytree(tmp_path / "now", moments[-1])
            photograph_all()
            return calls[name](*arguments, **more)

        return do

    def photograph_all():
        for name in calls:
            setattr(os, name, photographed(name))

    photograph_all()
    try:
        buffer.save(tmp_path / "now" / "b")
    finally:
        for name, call in calls.items():
            setattr(os, name, call)
    states = []
    for moment in moments:
        loaded = TrajectoryBuffer.load(moment / "b")
        new = any(
            batch == "text" for batch in loaded.sample("uniform_random", 99, None, None).texts
        )
        loaded = TrajectoryBuffer.load(moment / "b")
        assert loaded.rng.bit_generator.state == (buffer.rng.bit_generator.state if new else before)
        states.append(new)
        loaded.save(moment / "b")  # whatever lies about is in nobody's way
        assert len(list((moment / "b").iterdir())) == 2
    assert states == sorted(states) and 0 < sum(states) < len(states)


def test_what_cannot_be_loaded_says_why(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no saved pool in .*nothing/pool"):
        TrajectoryBuffer.load(tmp_path / "nothing")
    pool = ExperiencePool(ExperienceConfig(rollout_n=8))
    PoolFolder().save(pool, tmp_path / "trainer" / "pool", 3, {"data_fingerprint": "x"})
    with pytest.raises(ValueError, match="kind is None, expected 'TrajectoryBuffer'"):
        TrajectoryBuffer.load(tmp_path / "trainer")
    measured = TrajectoryBuffer(bucketer=DifficultyBucketer(level_of))
    measured.add(right("q0", level=0.5))
    measured.save(tmp_path / "function")
    with pytest.raises(
        ValueError, match=r"metric=None: .*function was saved with a function: must be given"
    ):
        TrajectoryBuffer.load(tmp_path / "function")
    assert TrajectoryBuffer.load(tmp_path / "function", level_of).sample().prompts == ["q0"]
    buffer = filled()
    buffer.save(tmp_path / "damaged")
    with pytest.raises(
        ValueError, match=r"was saved with correctness_rate: must be given for a function"
    ):
        TrajectoryBuffer.load(tmp_path / "damaged", level_of)
    windows = next((tmp_path / "damaged").glob("windows-*"))
    windows.write_bytes(windows.read_bytes()[:-1])
    with pytest.raises(DamagedPool, match=f"sha256 of {windows.name} is"):
        TrajectoryBuffer.load(tmp_path / "damaged")
    windows.unlink()
    with pytest.raises(DamagedPool, match=f"{windows.name} is missing"):
        TrajectoryBuffer.load(tmp_path / "damaged")


def test_after_clear_nothing_of_the_last_save_is_linked(tmp_path):
    buffer = TrajectoryBuffer()
    buffer.add(right("old", "serial 0"))
    buffer.save(tmp_path / "b")
    buffer.clear()
    buffer.add(right("new", "text"))
    buffer.save(tmp_path / "b")
    loaded = TrajectoryBuffer.load(tmp_path / "b")
    assert len(loaded) == 1 and loaded.sample(size=9, **ALL).texts == ["text"]


def test_a_buffer_saved_by_version_0_2_0_draws_as_it_did(tmp_path):
    shutil.copytree(GOLDEN / "buffer", tmp_path / "b")
    expected = json.loads((GOLDEN / "expected.json").read_text())["buffer"]
    expected["batch"]["texts"] = expected["batch"].pop("rollouts")  # as they are called since
    for _ in range(2):  # as 0.2.0 wrote it, and saved again
        loaded = TrajectoryBuffer.load(tmp_path / "b")
        loaded.save(tmp_path / "b")
        assert len(loaded) == expected["len"]
        batch = loaded.sample("uniform_random", 5, None, None)
        assert all(plain(batch[name]) == repr(column) for name, column in expected["batch"].items())


def test_without_pyarrow_the_line_says_what_to_install_and_nothing_is_made(tmp_path, monkeypatch):
    buffer = filled()
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as where it is not installed
    for use in (buffer.save, TrajectoryBuffer.load):
        with pytest.raises(
            ModuleNotFoundError, match=r"saved buffers need pyarrow, .* pip install pyarrow"
        ):
            use(tmp_path / "buffer")
    assert not any(tmp_path.iterdir())
