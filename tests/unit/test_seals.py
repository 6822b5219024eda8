"""The seal of a checkpoint: which damages are noticed before Ray starts, and what is used
instead.
"""

import pytest
from saved_pools import archive
from test_checkpoints import make

from exgrpo.on_verl import checkpoints, seals


def sealed(root, step):
    """A whole checkpoint, with weights and a queue in folders."""
    folder = make(root, step)
    archive(folder / "actor" / "model_world_size_1_rank_0.pt", f"weights of step {step}" * 100)
    (folder / "transfer_queue" / "unit").mkdir(parents=True)
    (folder / "transfer_queue" / "unit" / "rows.pkl").write_bytes(b"rows" * 100)
    (folder / "actor" / "huggingface").mkdir()
    (folder / "actor" / "huggingface" / "config.json").write_text("{}")
    seals.write(folder, step, None)
    return folder


def settled(root, **keys):
    trainer = {
        "resume_mode": "auto",
        "resume_from_path": None,
        "default_local_dir": str(root),
    } | keys
    checkpoints.settle(trainer, True, lambda folder: None)
    return checkpoints.marked_step(root)


def test_a_folder_to_which_another_run_writes_is_refused_though_it_has_no_checkpoint_yet(
    tmp_path, monkeypatch
):
    locked = checkpoints.durable._locked
    monkeypatch.setattr(checkpoints.durable, "_locked", lambda file, patience_s: locked(file, 0))
    assert settled(tmp_path / "new") is settled(tmp_path) is None
    with (
        checkpoints.durable.exclusive_on_all_hosts(tmp_path),
        pytest.raises(BlockingIOError, match="is writing to"),
    ):
        settled(tmp_path)


def test_folders_are_walked_and_a_whole_checkpoint_is_used(tmp_path, caplog):
    folder = sealed(tmp_path, 2)
    assert "transfer_queue/unit/rows.pkl" in seals.check(folder)["files"]
    assert settled(tmp_path) == 2 and not caplog.text


FILES = [
    "actor/model_world_size_1_rank_0.pt",
    "data.pt",
    "transfer_queue/unit/rows.pkl",
    "seal.json",
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "other step's"])
def test_damage_is_passed_over_in_one_line(tmp_path, caplog, name, damage):
    old, new = sealed(tmp_path, 2), sealed(tmp_path, 4)
    if (name, damage) in (("seal.json", "missing"), ("data.pt", "other step's")):
        return  # an earlier version has none; the other is equal
    content = (new / name).read_bytes()
    at = content.find(b"weights") if b"weights" in content else len(content) // 2
    flipped = content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
    (new / name).write_bytes(
        {"flip": flipped, "cut": content[:at], "missing": b""}.get(
            damage, (old / name).read_bytes()
        )
    )
    if damage == "missing":
        (new / name).unlink()
    if damage == "other step's" and content == (new / name).read_bytes():
        return
    assert settled(tmp_path) == 2
    assert "checkpoint of step 4 cannot be used" in caplog.text
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_a_named_checkpoint_is_refused(tmp_path):
    folder = sealed(tmp_path, 2)
    (folder / "actor" / "model_world_size_1_rank_0.pt").unlink()
    with pytest.raises(seals.DamagedCheckpoint, match=r"rank_0\.pt is missing"):
        settled(tmp_path, resume_mode="resume_path", resume_from_path=str(folder))


def test_an_unsealed_checkpoint_with_a_cut_archive_is_passed_over(tmp_path):
    sealed(tmp_path, 2)
    folder = sealed(tmp_path, 4)
    (folder / seals.SEAL).unlink()
    assert settled(tmp_path) == 4
    (folder / "data.pt").write_bytes((folder / "data.pt").read_bytes()[:50])
    assert settled(tmp_path) == 2


def test_the_pool_of_another_run_or_none_is_passed_over(tmp_path, caplog):
    sealed(tmp_path, 2)
    folder = sealed(tmp_path, 4)
    seals.write(folder, 4, "another")
    assert settled(tmp_path) == 2 and "its checkpoint is of run another" in caplog.text
    (tmp_path / checkpoints.MARKER).write_text("4")
    (folder / checkpoints.POOL).rename(tmp_path / "away")
    assert settled(tmp_path) == 2 and "without experience" in caplog.text


def test_a_tokenizer_file_is_a_line(tmp_path, caplog):
    (sealed(tmp_path, 2) / "actor" / "huggingface" / "config.json").write_text("{ }")
    assert settled(tmp_path) == 2 and "no resume reads it" in caplog.text
