"""verl's latest marker, whole, empty and absent; the checkpoint a run goes on from; what goes with
its weights.
"""

import shutil

import pytest
from omegaconf import OmegaConf
from saved_pools import archive

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl import checkpoints, old_checkpoints
from exgrpo.saved.pool_files import DamagedPool
from exgrpo.saved.pool_folder import PoolFolder

CONFIG = ExperienceConfig(rollout_n=8)
IDENTITY = {"data_fingerprint": "d", "tokenizer": "t", "questions": 3}


def make(root, step, *, data=True, actor=True):
    """A checkpoint whose pool holds one trajectory of that step."""
    folder = checkpoints.step_folder(root, step)
    replay = ExperienceReplay(CONFIG, ["q"])
    replay.pool.observe(RolloutGroup("q", 8, (Trajectory([step], [-1.0], step),)))
    state = replay.state() | {"deferred": [f"after {step}"]}
    PoolFolder().save(replay.pool, folder / checkpoints.POOL, step, IDENTITY, state)
    if actor:
        (folder / "actor").mkdir()
        for part in ("model", "optim", "extra_state"):
            archive(folder / "actor" / f"{part}_world_size_1_rank_0.pt")
    if data:
        archive(folder / "data.pt")
    (root / checkpoints.MARKER).write_text(str(step))
    return folder


def open_(root, mode="auto", path=None, config=CONFIG, **identity):
    trainer = OmegaConf.create(
        {"resume_mode": mode, "resume_from_path": path, "default_local_dir": str(root)}
    )
    questions = ["q", *(f"after {step}" for step in range(50))]
    step, replay, *_ = checkpoints.open_experience(trainer, config, IDENTITY | identity, questions)
    steps = [each.step for each in replay.pool.candidates("q")] if replay.pool.eligible else []
    return step, steps, replay.state()["deferred"]


def damage(folder):
    path = next((folder / checkpoints.POOL / "trajectories").iterdir())
    path.write_bytes(path.read_bytes()[:-1])


def test_the_marked_checkpoint_is_gone_on_from(tmp_path):
    make(tmp_path, 2)
    make(tmp_path, 4)
    make(tmp_path, 6)
    (tmp_path / checkpoints.MARKER).write_text("4")  # 6 was never marked
    assert open_(tmp_path) == (4, [4], ["after 4"])
    assert checkpoints.marked_step(tmp_path) == 4


def test_past_groups_are_gone_on_with_where_they_are_replayed(tmp_path, caplog):
    folders, groups = (
        [make(tmp_path, step) for step in (2, 4)],
        ExperienceConfig(rollout_n=8, exp_unit="group"),
    )
    rollouts = tuple(Trajectory([1], [-1.0], 1, reward=reward) for reward in (0.0, 1.0))
    for step, folder in zip((2, 4), folders, strict=True):
        pool = ExperiencePool(groups)
        stored, state = (
            [StoredGroup("q", step, rollouts)],
            ExperienceReplay(groups, ["q"], pool).state(),
        )
        PoolFolder().save(pool, folder / checkpoints.POOL, step, IDENTITY, state, stored)

    def resumed(config):
        trainer = OmegaConf.create({"resume_mode": "auto", "default_local_dir": str(tmp_path)})
        return [
            each.step
            for each in checkpoints.open_experience(trainer, config, IDENTITY, ["q"]).replay.groups
        ]

    assert resumed(groups) == [4] and resumed(CONFIG) == []
    (folders[1] / checkpoints.POOL / "groups.parquet").write_bytes(b"")
    assert resumed(groups) == [2] and "sha256 of groups.parquet" in caplog.text


def test_a_new_bound_on_age_holds_from_the_first_resumed_step_on(tmp_path):
    make(tmp_path, 4)
    groups = ExperienceConfig(rollout_n=8, exp_unit="group", experience_max_age=2)
    rollouts = tuple(Trajectory([1], [-1.0], 1, reward=reward) for reward in (0.0, 1.0))
    pool = ExperiencePool(ExperienceConfig(rollout_n=8))
    for step in (2, 4):
        pool.observe(RolloutGroup("q", 8, (Trajectory([step], [-1.0], step),)))
    stored, state = (
        [StoredGroup("q", step, rollouts) for step in (2, 4)],
        ExperienceReplay(groups, ["q"], pool).state(),
    )
    PoolFolder().save(
        pool, checkpoints.step_folder(tmp_path, 4) / checkpoints.POOL, 4, IDENTITY, state, stored
    )
    trainer = OmegaConf.create({"resume_mode": "auto", "default_local_dir": str(tmp_path)})
    replay = checkpoints.open_experience(trainer, groups, IDENTITY, ["q"]).replay
    assert (
        [group.step for group in replay.groups]
        == [each.step for each in replay.pool.candidates("q")]
        == [4]
    )


def test_a_first_save_that_was_cut_off_before_the_queue_is_none(tmp_path):
    folder = make(tmp_path, 2)
    replay, prompts = ExperienceReplay(CONFIG, ["q"]), {"uid": ["q", False, True]}
    shutil.rmtree(folder / checkpoints.POOL)
    PoolFolder().save(
        replay.pool, folder / checkpoints.POOL, 2, IDENTITY, replay.state() | {"prompts": prompts}
    )
    with pytest.raises(
        checkpoints.DamagedCheckpoint, match="without transfer_queue/, which holds the prompts in"
    ):
        checkpoints.check_whole(folder, 2, with_pool=True)
    (folder / checkpoints.QUEUE).mkdir()
    checkpoints.check_whole(folder, 2, with_pool=True)


def test_damage_falls_back_to_the_latest_whole_one_and_says_so(tmp_path, caplog):
    for step in (2, 4, 6, 8):
        make(tmp_path, step)
    damage(checkpoints.step_folder(tmp_path, 8))
    (checkpoints.step_folder(tmp_path, 6) / "data.pt").unlink()
    assert open_(tmp_path) == (4, [4], ["after 4"])
    assert checkpoints.marked_step(tmp_path) == 4  # verl takes the weights of the marked step
    assert "checkpoint of step 8 cannot be used: saved pool" in caplog.text
    assert "global_step_6 has no data.pt" in caplog.text
    assert (
        "resuming from step 4: " in caplog.text
        and "named step 8; what it named is left as it is" in caplog.text
    )
    assert (checkpoints.step_folder(tmp_path, 8) / "actor").is_dir()


@pytest.mark.parametrize("left", [b"", b"\xff\xfe", "²".encode(), b"4\xb4"])
def test_a_damaged_marker_or_a_stray_folder_leaves_the_latest_whole_one(tmp_path, left):
    for step in (2, 4):
        make(tmp_path, step)
    (tmp_path / "global_step_²").mkdir()
    (tmp_path / checkpoints.MARKER).write_bytes(left)
    assert open_(tmp_path) == (4, [4], ["after 4"])
    assert checkpoints.marked_step(tmp_path) == 4


def test_a_checkpoint_whose_weights_were_deleted_is_passed_over(tmp_path, caplog):
    make(tmp_path, 2)
    make(tmp_path, 4, actor=False)
    assert open_(tmp_path) == (2, [2], ["after 2"])
    assert "global_step_4 has no actor, though step 2 has: its weights were deleted" in caplog.text


def test_weights_may_be_on_the_disks_of_other_nodes(tmp_path, caplog):
    for step in (2, 4):
        make(tmp_path, step, actor=False)
    assert open_(tmp_path) == (4, [4], ["after 4"])
    assert (
        "global_step_4 has no weights on this disk; they must be on the disks of the actor's nodes"
        in caplog.text
    )
    assert "cannot be used" not in caplog.text


def test_with_nothing_whole_the_marked_one_is_named(tmp_path):
    damage(make(tmp_path, 2))
    make(tmp_path, 4, data=False)
    with pytest.raises(FileNotFoundError, match=r"global_step_4 has no data\.pt"):
        open_(tmp_path)
    archive(checkpoints.step_folder(tmp_path, 4) / "data.pt")
    damage(checkpoints.step_folder(tmp_path, 4))
    with pytest.raises(DamagedPool, match="global_step_4"):
        open_(tmp_path)
    assert open_(tmp_path, mode="disable") == (0, [], [])


def test_a_pool_of_something_else_is_no_damage(tmp_path):
    make(tmp_path, 2)
    make(tmp_path, 4)
    with pytest.raises(ValueError, match="tokenizer is 't', expected 'other'"):
        open_(tmp_path, tokenizer="other")
    assert checkpoints.marked_step(tmp_path) == 4


def test_a_given_path_is_taken_or_refused(tmp_path):
    folder = make(tmp_path, 2)
    make(tmp_path, 4)
    assert open_(tmp_path, "resume_path", str(folder)) == (2, [2], ["after 2"])
    damage(folder)
    with pytest.raises(DamagedPool):
        open_(tmp_path, "resume_path", str(folder))


def test_a_new_run_starts_with_the_imported_pool_and_a_resumed_one_does_not(tmp_path):
    imported = ExperiencePool(CONFIG)
    imported.file("q", 4, Trajectory.without_log_probs([7], 0))
    PoolFolder().save(
        imported, tmp_path / "teacher", 0, {"data_fingerprint": "d", "tokenizer": "t"}
    )
    config = ExperienceConfig(rollout_n=8, experience_import=str(tmp_path / "teacher"))
    (tmp_path / "run").mkdir()
    assert open_(tmp_path / "run", config=config) == (0, [0], [])
    for name, its in (("data_fingerprint", "d"), ("tokenizer", "t")):
        with pytest.raises(ValueError, match=f"{name} is '{its}', expected 'other'"):
            open_(tmp_path / "run", config=config, **{name: "other"})
    make(tmp_path / "run", 3)
    assert open_(tmp_path / "run", config=config) == (3, [3], ["after 3"])


def test_a_new_run_may_start_with_the_pool_of_another_run(tmp_path):
    """As on another number of GPUs: ages begin anew, buckets and retired questions go on."""
    groups = ExperienceConfig(rollout_n=8, exp_unit="group")
    old, state = ExperiencePool(groups), ExperienceReplay(groups, ["q", "r"]).state()
    for step in (299, 300):
        old.observe(RolloutGroup("q", 8, (Trajectory([step], [-1.0], step, 0.5),) * 3))
    old.observe(RolloutGroup("r", 8, (Trajectory([1], [-1.0], 300),) * 8))
    old.end_step(300, {})
    rollouts = tuple(Trajectory([1], [-1.0], 299, reward=reward) for reward in (0.0, 1.0))
    stored = [StoredGroup("q", 299, rollouts)]
    PoolFolder().save(old, tmp_path / "old", 300, IDENTITY, state, stored)

    trainer = OmegaConf.create({"resume_mode": "auto", "default_local_dir": str(tmp_path / "new")})
    config = ExperienceConfig(
        rollout_n=8, exp_unit="group", experience_import=str(tmp_path / "old")
    )
    step, replay, folder, _ = checkpoints.open_experience(trainer, config, IDENTITY, ["q", "r"])
    found = replay.pool.candidates("q")
    assert step == 0 and [(each.step, each.tokens.tolist(), each.entropy) for each in found] == [
        (0, [299], 0.5),
        (0, [300], 0.5),
    ]
    assert (replay.pool.bucket("q"), replay.pool.retired) == (3, ["r"])
    assert [(group.step, *(each.step for each in group.rollouts)) for group in replay.groups] == [
        (0, 0, 0)
    ]
    assert replay.pool.end_step(1, {})["age_median"] == 1
    folder.save(replay.pool, tmp_path / "saved", 1, IDENTITY)
    assert [
        each.step for each in PoolFolder().load(tmp_path / "saved", config, 1, {}).candidates("q")
    ] == [0, 0]


def test_an_empty_marker_names_the_newest_whole_checkpoint(tmp_path):
    make(tmp_path, 2)
    make(tmp_path, 10)
    make(tmp_path, 12, data=False)
    (tmp_path / checkpoints.MARKER).write_text("")
    assert checkpoints.marked_step(tmp_path) is None
    assert open_(tmp_path)[0] == 10 == checkpoints.marked_step(tmp_path)
    assert not list(tmp_path.glob("*.tmp"))


def test_what_a_torn_marker_may_have_named_is_tried_after_the_steps_before_it(tmp_path):
    """4 is what a kill may have left of 40, or the step that was saved."""
    for step in (3, 4, 5, 40):
        make(tmp_path, step)
    (tmp_path / checkpoints.MARKER).write_text("4")
    assert open_(tmp_path)[0] == 4
    for step, then in ((4, 3), (3, 40)):
        damage(checkpoints.step_folder(tmp_path, step))
        assert open_(tmp_path)[0] == then
        (tmp_path / checkpoints.MARKER).write_text("4")


@pytest.mark.parametrize("torn", ["4", "7", None])
def test_a_marker_that_names_no_step_that_is_there_is_no_new_run(tmp_path, torn, caplog):
    for step in (2, 30, 40):
        make(tmp_path, step)
    (tmp_path / checkpoints.MARKER).unlink()
    if torn is not None:
        (tmp_path / checkpoints.MARKER).write_text(
            torn
        )  # of 40, of a step that somebody has removed
    assert open_(tmp_path) == (40, [40], ["after 40"])
    assert checkpoints.marked_step(tmp_path) == 40
    assert "resuming from step 40: " in caplog.text


def test_a_whole_marker_is_left_alone_and_a_first_save_that_was_cut_is_said(tmp_path, caplog):
    folder = make(tmp_path, 2)
    assert open_(tmp_path)[0] == 2 == checkpoints.marked_step(tmp_path) and not caplog.text
    (tmp_path / checkpoints.MARKER).unlink()
    (folder / "data.pt").unlink()
    assert open_(tmp_path) == (0, [], [])
    assert "no checkpoint is whole or marked: a new run begins at step 0" in caplog.text


def with_folder(root, name):
    return sorted(int(path.parent.name.split("_")[-1]) for path in root.glob(f"*/{name}"))


@pytest.mark.parametrize("keep", [2, 3, None, -1])
@pytest.mark.parametrize("actor", [True, False])
def test_experience_and_queue_go_when_verl_deletes_their_weights_wherever_they_are(
    tmp_path, keep, actor
):
    """verl's own manager says what it deletes; on a node-local disk without the actor nothing of it
    can be seen.
    """
    from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

    class Verl(BaseCheckpointManager):
        def __init__(self):
            self.previous_saved_paths, self.deleted = [], []

        def remove_previous_save_local_path(self, path):
            self.deleted += path

    make(tmp_path, 1, actor=actor)  # of an earlier process: verl does not touch it
    rotation, verl = old_checkpoints.Rotation(tmp_path, keep), Verl()
    gone = []
    for step in range(2, 9):
        (make(tmp_path, step, actor=actor) / checkpoints.QUEUE).mkdir()
        gone += rotation.make_room(step)
        verl.ensure_checkpoint_capacity(keep)
        verl.register_checkpoint(step, keep)
        kept = [s for s in range(1, step + 1) if s not in verl.deleted]
        assert with_folder(tmp_path, "experience") == kept, step
        assert with_folder(tmp_path, "transfer_queue") == [s for s in kept if s > 1], step
    assert gone == verl.deleted and len(gone) == (7 - keep if keep in (2, 3) else 0)


def test_the_odds_of_questions_in_flight_are_saved_and_others_forgotten():
    replay = ExperienceReplay(
        ExperienceConfig(rollout_n=8, experience_start_sratio=0), ["q", "r", "s", "t"]
    )
    replay.pool.observe(RolloutGroup("q", 8, (Trajectory([1], [-1.0], 1),)))
    assert replay.draw(1, 2, lambda: ("r", False), in_flight=()).replayed == ["q"]
    again = ExperienceReplay(replay.config, ["q", "r", "s", "t"], replay.pool)
    again.restore(replay.state())
    assert again.state()["odds"] == replay.state()["odds"] and list(again.state()["odds"]) == ["q"]
    again.draw(2, 1, lambda: ("s", False), in_flight=("r", "q"))
    assert list(again.state()["odds"]) == ["q"]
    again.draw(3, 1, lambda: ("t", False), in_flight=("r",))  # the group of q never came back
    assert again.state()["odds"] == {}


def test_a_stuck_question_waits_once_however_many_epochs_fetch_it():
    replay = ExperienceReplay(CONFIG, ["stuck", "a", "b"])
    epochs = iter(["stuck", "a", "b"] * 20)
    for step in range(20):
        replay.draw(step, 1, lambda: (next(epochs), False), in_flight=("stuck",))
    assert replay.state()["deferred"] == ["stuck"]
