"""Files and folders that are replaced as a whole, and the lock between writers of one host."""

import os
from pathlib import Path

import pytest
from saved_pools import draws, files, lived, load, save

from exgrpo.saved import durable


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    durable.replace_file(tmp_path / "f", "old \ud800", errors="replace")
    assert (tmp_path / "f").read_text() == "old ?"
    monkeypatch.setattr(durable.os, "fsync", lambda _: os.stat("/nonexistent"))
    with pytest.raises(FileNotFoundError):
        durable.replace_file(tmp_path / "f", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["f"] and (
        tmp_path / "f"
    ).read_text() == "old ?"


def test_an_error_while_a_file_is_written_leaves_the_old_one(tmp_path):
    (tmp_path / "f").write_text("old")
    with pytest.raises(KeyError), durable.replaced(tmp_path / "f") as temporary:
        temporary.write_text("half")
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["f"] and (
        tmp_path / "f"
    ).read_text() == "old"


def test_the_other_writer_is_waited_for(tmp_path):
    with (
        durable.exclusive(tmp_path),
        pytest.raises(BlockingIOError),
        durable.exclusive(tmp_path, patience_s=0.3),
    ):
        pass
    with durable.exclusive(tmp_path, patience_s=0.3):
        pass


@pytest.mark.parametrize("half_way", [True, False])
def test_a_replacement_cut_between_its_renames_is_undone_and_one_behind_them_completed(
    tmp_path, half_way
):
    old, new = lived(0), lived(1)
    save(old, tmp_path / ".pool.previous")
    if half_way:
        save(new, tmp_path / ".pool.tmp")
    else:
        save(new, tmp_path / "pool")
    there = files(tmp_path)
    loaded = load(tmp_path / "pool")
    assert draws(loaded) == draws(old if half_way else new)
    assert files(tmp_path) == there  # a reader writes nothing: a writer may be at work
    save(loaded, tmp_path / "pool")
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]
    assert draws(load(tmp_path / "pool")) == draws(old if half_way else new)


def test_all_that_is_saved_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """Else a power failure could leave a checkpoint of which parts are empty."""
    done, fsync, rename = [], os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda file: (done.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file))
    )
    monkeypatch.setattr(os, "rename", lambda *paths: (done.append("rename"), rename(*paths)))
    save(lived(), tmp_path / "pool")
    before = {
        Path(path).relative_to(tmp_path / ".pool.tmp") for path in done[: done.index("rename")]
    }
    saved = {path.relative_to(tmp_path / "pool") for path in (tmp_path / "pool").rglob("*")}
    assert len(saved) > 6 and before == saved | {Path()}


def test_a_linked_folder_is_replaced_where_it_is(tmp_path):
    (tmp_path / "disk").mkdir()
    save(lived(0), tmp_path / "disk" / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "disk" / "pool")
    new = lived(1)
    for _ in range(2):
        save(new, tmp_path / "pool")
    assert (tmp_path / "pool").is_symlink() and draws(load(tmp_path / "pool")) == draws(new)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["pool"]
