"""What the trainer does before and after verl saves a step, verl's own part replaced."""

import pytest
from omegaconf import OmegaConf
from saved_pools import archive
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer
from exgrpo.on_verl import checkpoints, old_checkpoints
from exgrpo.on_verl.saved_run import SavedRun
from exgrpo.on_verl.seals import STATES_DELETED
from exgrpo.saved.pool_folder import PoolFolder

CONFIG = ExperienceConfig(rollout_n=8)


def trainer_in(folder, keep=None):
    trainer = object.__new__(ExperienceMixPPOTrainer)
    trainer.config = OmegaConf.create(
        {"trainer": {"default_local_dir": str(folder), "max_optim_to_keep": None}}
    )
    trainer.experience, trainer.replay = CONFIG, ExperienceReplay(CONFIG, ["q"])
    trainer.saved_run = SavedRun(
        0, {"run": "r"}, {}, PoolFolder(), old_checkpoints.Rotation(folder, keep)
    )
    return trainer


def marked(root, step):
    """What verl leaves of a step."""
    folder = checkpoints.step_folder(root, step)
    (folder / "actor").mkdir(parents=True)
    archive(folder / "data.pt")
    (root / checkpoints.MARKER).write_text(str(step))


def test_a_step_that_is_saved_again_is_no_whole_checkpoint_until_it_is_saved(tmp_path, monkeypatch):
    """A run resumed from step 2 by its path reaches the marked step 4 again and is killed while
    verl saves weights.
    """

    class Killed(BaseException):
        pass

    def killed(self):
        raise Killed

    marked(tmp_path, 2)
    marked(tmp_path, 4)
    note = tmp_path / "global_step_4" / STATES_DELETED
    note.write_text("")  # the states that it had were deleted
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", killed)
    trainer = trainer_in(tmp_path)
    trainer.global_steps = 4
    with pytest.raises(Killed):
        trainer._save_checkpoint()
    assert checkpoints.marked_step(tmp_path) == 4 and not note.exists()
    assert checkpoints.resume_latest(tmp_path, lambda folder, step: step) == 2


def test_weights_that_verl_deletes_on_one_node_go_on_all_of_them(tmp_path, monkeypatch):
    """But only once the step that takes their place is saved."""
    done = []
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: done.append("saved"))
    monkeypatch.setattr(old_checkpoints, "on_all_nodes", lambda *call: done.append(call))
    trainer = trainer_in(tmp_path, keep=2)
    for trainer.global_steps in (1, 2, 3):
        trainer._save_checkpoint()
    assert done == ["saved"] * 3 + [(old_checkpoints.delete_weights, str(tmp_path), [1])]
    (tmp_path / "global_step_1" / "actor").mkdir()
    old_checkpoints.delete_weights(str(tmp_path), [1])
    assert (tmp_path / "global_step_1").is_dir() and not (
        tmp_path / "global_step_1" / "actor"
    ).exists()
