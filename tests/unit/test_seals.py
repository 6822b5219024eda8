"""The seal of a checkpoint: which damages are noticed before Ray starts, and what is used
instead.
"""

import json

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
    checkpoints.mark_checkpoint_to_resume(trainer, True, lambda folder: None)
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


@pytest.mark.parametrize("part", ["model", "optim", "extra_state"])
def test_without_a_seal_the_files_of_all_ranks_are_counted(tmp_path, part, caplog):
    sealed(tmp_path, 2)
    folder = sealed(tmp_path, 4)
    (folder / seals.SEAL).unlink()
    (folder / "actor" / f"{part}_world_size_1_rank_0.pt").unlink()
    assert settled(tmp_path) == 2 and "without a seal, and not of every rank" in caplog.text


def test_what_is_not_loaded_need_not_be_there_and_another_rank_must(tmp_path):
    folder = make(tmp_path, 2)
    (folder / "actor" / "optim_world_size_1_rank_0.pt").unlink()
    seals.check(folder, 2, ["model", "extra"])
    for path in sorted((folder / "actor").iterdir()):
        path.rename(path.with_name(path.name.replace("size_1", "size_2")))
    with pytest.raises(seals.DamagedCheckpoint, match="every rank"):
        seals.check(folder, 2, ["model", "extra"])
    seals.check(folder, 2, ["model", "extra"], nodes=2)  # rank 1 is on the other one


def forged(folder, **changes):
    """A seal with other values and the checksum that fits them."""
    seal = json.loads((folder / seals.SEAL).read_text()) | changes
    seal.pop("checksum")
    text = json.dumps(seal | {"checksum": seals.checksum_of(seal)})
    (folder / seals.SEAL).write_text(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": {"data.pt": 7}},
        {"files": {"data.pt": ["7", None]}},
        {"files": {"../data.pt": [7, 7]}},
        {"step": "4"},
        {"step": 6},
        {"step": True},
        {"run": ["x"]},
    ],
)
def test_a_forged_seal_is_passed_over_in_one_line(tmp_path, changes, caplog):
    sealed(tmp_path, 2)
    forged(sealed(tmp_path, 4), **changes)
    assert settled(tmp_path) == 2
    assert len([line for line in caplog.text.splitlines() if "step 4 cannot be used" in line]) == 1


@pytest.mark.parametrize("text", ["[" * 50_000, "7", "null", '{"checksum": {}}'])
def test_a_seal_that_is_none_is_passed_over(tmp_path, text):
    sealed(tmp_path, 2)
    (sealed(tmp_path, 4) / seals.SEAL).write_text(text)
    assert settled(tmp_path) == 2


def test_a_marker_of_five_thousand_digits_or_a_folder_names_no_step(tmp_path):
    sealed(tmp_path, 2)
    (tmp_path / checkpoints.MARKER).write_text("7" * 5_000)
    assert settled(tmp_path) == 2
    (tmp_path / checkpoints.MARKER).unlink()
    (tmp_path / checkpoints.MARKER).mkdir()
    assert settled(tmp_path) == 2


def test_the_files_of_a_linked_folder_are_sealed(tmp_path):
    folder = sealed(tmp_path / "run", 2)
    (folder / "actor").rename(tmp_path / "elsewhere")
    (folder / "actor").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "again").symlink_to(folder)  # a circle
    seals.write(folder, 2, None)
    assert "actor/model_world_size_1_rank_0.pt" in seals.check(folder)["files"]


def test_another_run_in_the_folder_is_not_fallen_back_to(tmp_path, caplog):
    sealed(tmp_path, 2)
    seals.write(checkpoints.step_folder(tmp_path, 2), 2, "theirs")
    folder = sealed(tmp_path, 4)
    seals.write(folder, 4, "ours")
    (folder / "data.pt").write_bytes(b"cut")
    with pytest.raises((ValueError, OSError)):
        settled(tmp_path)
    assert "of run theirs" in caplog.text and "names one of ours" in caplog.text
