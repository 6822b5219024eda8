"""Which optimizer states are deleted and which never, and what a run that needs a deleted one is
told.
"""

import logging

import pytest
from omegaconf import OmegaConf
from saved_pools import archive

from exgrpo.experience.config import ExperienceConfig, TrainerKeys
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.on_verl import checkpoints, old_checkpoints
from exgrpo.saved.pool_files import DamagedPool
from exgrpo.saved.pool_folder import PoolFolder

CONFIG = ExperienceConfig(rollout_n=8)
IDENTITY = {"data_fingerprint": "d", "tokenizer": "t", "questions": 3}


def make(root, step, *, whole=True, mark=True):
    """What verl leaves of a step on a disk that holds two ranks, and our pool."""
    folder = checkpoints.step_folder(root, step)
    checkpoints.expect_new(folder)
    replay = ExperienceReplay(CONFIG, ())
    PoolFolder().save(replay.pool, folder / checkpoints.POOL, step, IDENTITY, replay.state())
    (folder / "actor").mkdir(exist_ok=True)
    for rank in range(2):
        for part in ("model", "optim", "extra_state"):
            archive(folder / "actor" / f"{part}_world_size_2_rank_{rank}.pt")
    if whole:
        archive(folder / "data.pt")
    if whole and mark:
        (root / checkpoints.MARKER).write_text(str(step))


def with_states(root):
    return sorted({int(file.parts[-3].split("_")[-1]) for file in root.glob("*/actor/optim_*")})


def here(delete, root, steps):
    delete(root, steps)


def rotate(root, keep=2):
    return old_checkpoints.delete_states(root, keep, here)


def test_the_last_two_keep_theirs_and_nothing_else_is_deleted(tmp_path):
    for step in (50, 100, 150, 200):
        make(tmp_path, step)
        rotate(tmp_path)
    assert with_states(tmp_path) == [150, 200]
    kept = {file.name for file in (tmp_path / "global_step_50" / "actor").iterdir()}
    assert kept == {
        f"{part}_world_size_2_rank_{rank}.pt"
        for part in ("model", "extra_state")
        for rank in range(2)
    }


def test_what_is_not_marked_yet_neither_counts_nor_is_touched(tmp_path):
    for step in (50, 100):
        make(tmp_path, step)
    make(tmp_path, 150, mark=False)  # a kill before verl's marker; or a run that went back to 100
    assert rotate(tmp_path, keep=1) == [50]
    assert with_states(tmp_path) == [100, 150]


def test_a_checkpoint_that_verl_had_not_finished_does_not_count_as_one_of_the_last(tmp_path):
    for step, whole in ((50, True), (100, True), (120, False), (150, True)):
        make(tmp_path, step, whole=whole)
    assert rotate(tmp_path) == [120, 50]
    assert with_states(tmp_path) == [100, 150]


def test_a_kill_between_note_and_deletion_is_made_good(tmp_path):
    for step in (50, 100, 150):
        make(tmp_path, step)

    def killed(delete, root, steps):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        old_checkpoints.delete_states(tmp_path, 2, killed)
    assert with_states(tmp_path) == [50, 100, 150] and old_checkpoints.states_deleted(
        tmp_path / "global_step_50"
    )
    make(tmp_path, 200)
    assert rotate(tmp_path) == [100, 50] and with_states(tmp_path) == [150, 200]


def test_a_step_that_is_saved_again_has_states_again(tmp_path):
    for step in (50, 100):
        make(tmp_path, step)
        rotate(tmp_path, keep=1)
    make(tmp_path, 50)
    old_checkpoints.check_states(tmp_path / "global_step_50")


def open_(root, check=old_checkpoints.check_states):
    trainer = OmegaConf.create(
        {"resume_mode": "auto", "resume_from_path": None, "default_local_dir": str(root)}
    )
    return checkpoints.open_experience(trainer, CONFIG, IDENTITY, (), check)[0]


def damage(root, step):
    (checkpoints.step_folder(root, step) / checkpoints.POOL / "questions.parquet").write_text("")


def test_the_fall_back_goes_to_one_that_has_its_states_and_no_further(tmp_path, caplog):
    for step in (50, 100, 150):
        make(tmp_path, step)
        rotate(tmp_path)
    damage(tmp_path, 150)
    assert open_(tmp_path) == 100
    damage(tmp_path, 100)
    with pytest.raises(DamagedPool, match="global_step_100"), caplog.at_level(logging.ERROR):
        open_(tmp_path)
    assert (
        "global_step_50: its optimizer states were deleted (trainer.max_optim_to_keep)"
        in caplog.text
    )
    weights_alone = old_checkpoints.check_if_loaded(["model", "extra"])
    assert open_(tmp_path, weights_alone) == 50


def trainer(root, **keys):
    return {
        "max_optim_to_keep": 2,
        "resume_mode": "auto",
        "resume_from_path": None,
        "default_local_dir": root,
    } | keys


def verify(trainer, contents):
    checkpoints.mark_checkpoint_to_resume(trainer, True, old_checkpoints.check_if_loaded(contents))


def test_a_run_from_a_checkpoint_without_states_is_refused_before_anything_starts(tmp_path):
    for step in (50, 100):
        make(tmp_path, step)
        rotate(tmp_path, keep=1)
    everything, path = ["model", "optimizer", "extra"], str(tmp_path / "global_step_50")
    verify(trainer(tmp_path), everything)
    with pytest.raises(
        FileNotFoundError,
        match=r"global_step_50: its optimizer states were deleted .*load_contents",
    ):
        verify(trainer(tmp_path, resume_mode="resume_path", resume_from_path=path), everything)
    (tmp_path / checkpoints.MARKER).write_text("50")
    with pytest.raises(FileNotFoundError, match="global_step_50"):
        verify(trainer(tmp_path), everything)
    verify(trainer(tmp_path), ["model", "extra"])
    verify(trainer(tmp_path, resume_mode="disable"), everything)


@pytest.mark.parametrize("value", [0, -1, "two", 1.5, True])
def test_a_wrong_number_is_one_line(tmp_path, value):
    with pytest.raises(
        ValueError,
        match=r"^trainer\.max_optim_to_keep=.*: must be an integer of at least 1, or null",
    ):
        TrainerKeys.from_mapping(trainer(tmp_path, max_optim_to_keep=value))
