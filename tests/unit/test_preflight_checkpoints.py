"""Checkpoints and pools that a configuration names, checked before anything starts."""

import numpy as np
import pytest
from composed import configuration
from saved_pools import archive
from transformers import AutoTokenizer

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import fingerprint, question_id, tokenizer_fingerprint
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer
from exgrpo.preflight.checks import resolve, verify
from exgrpo.prompts import load_tokenizer
from exgrpo.saved import durable
from exgrpo.saved.pool_folder import PoolFolder


def checkpoint(files, questions, tokenizer=None):
    """A checkpoint of step 3 whose pool belongs to these questions."""
    pool = ExperiencePool(ExperienceConfig(rollout_n=8))
    success = Trajectory(np.arange(3), np.full(3, -1.0), step=1)
    pool.observe(RolloutGroup(question_id(questions[0]), 8, (success,)))
    folder = files / "checkpoints" / "global_step_3"
    folder.mkdir(parents=True)
    identity = {"data_fingerprint": fingerprint(question_id(question) for question in questions)}
    identity["tokenizer"] = tokenizer or tokenizer_fingerprint(load_tokenizer(files / "model"))
    PoolFolder().save(pool, folder / "experience", 3, identity)
    archive(folder / "data.pt")
    (files / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("3")


def weights(actor, ranks):
    """What verl saves of an actor."""
    actor.mkdir()
    for part in ("model", "optim", "extra_state"):
        for rank in range(ranks):
            archive(actor / f"{part}_world_size_{ranks}_rank_{rank}.pt")


def test_experience_of_another_data_set_is_refused(files):
    checkpoint(files, ["other question"])
    with pytest.raises(ValueError, match="experience of another data set"):
        verify(configuration(files))
    verify(configuration(files, "trainer.resume_mode=disable"))


@pytest.mark.parametrize(
    "keys",
    [
        ["trainer.default_local_dir='~/checkpoints'"],
        [
            "trainer.resume_mode=resume_path",
            "trainer.resume_from_path='~/checkpoints/global_step_3'",
        ],
        [
            "trainer.resume_mode=disable",
            "trainer.experience_import='~/checkpoints/global_step_3/experience'",
        ],
    ],
)
def test_a_folder_below_home_is_checked_like_any_other(files, monkeypatch, keys):
    monkeypatch.setenv("HOME", str(files))
    checkpoint(files, ["other question"])
    with pytest.raises(ValueError, match="experience of another data set"):
        verify(configuration(files, *keys))


def test_experience_of_another_tokenizer_is_refused(files):
    checkpoint(files, [f"q{i}" for i in range(16)], "other")
    with pytest.raises(
        ValueError, match="global_step_3/experience: tokenizer is 'other', expected '"
    ):
        verify(configuration(files))
    verify(configuration(files, "trainer.experience=False"))
    verify(configuration(files, "trainer.resume_mode=disable"))


def test_a_file_is_no_folder_of_checkpoints(files):
    for folder in ("data.parquet", "data.parquet/run"):
        wrong = f"trainer.default_local_dir={files}/{folder}"
        with pytest.raises(OSError, match=f"{wrong}: must be a folder") as caught:
            verify(configuration(files, wrong))
        assert "\n" not in str(caught.value)


def test_experience_of_this_data_set_is_taken(files):
    checkpoint(files, [f"q{i}" for i in range(16)])
    verify(configuration(files))


def test_a_checkpoint_without_experience_is_refused(files):
    (files / "checkpoints" / "global_step_3").mkdir(parents=True)
    archive(files / "checkpoints" / "global_step_3" / "data.pt")
    (files / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("3")
    with pytest.raises(FileNotFoundError, match="a checkpoint without experience"):
        verify(configuration(files))
    verify(configuration(files, "trainer.experience=False"))


def test_an_on_policy_run_is_told_that_its_folder_has_one_with_replay(files, caplog):
    verify(configuration(files, "trainer.experience=False"))
    assert not caplog.messages
    checkpoint(files, [f"q{i}" for i in range(16)])
    weights(files / "checkpoints" / "global_step_3" / "actor", ranks=8)
    verify(configuration(files, "trainer.experience=False"))
    [said] = caplog.messages
    assert (
        "global_step_3, which was trained with replay; a baseline needs another "
        "trainer.default_local_dir" in said
    )
    verify(configuration(files, "trainer.experience=False", "trainer.resume_mode=disable"))
    assert caplog.messages == [said]


def test_experience_of_other_group_sizes_or_of_no_data_set_is_refused(files):
    checkpoint(files, [f"q{i}" for i in range(16)])
    with pytest.raises(ValueError, match="experience: rollout_n is 8, expected 4"):
        verify(configuration(files, "actor_rollout_ref.rollout.n=4"))
    for identity in ({}, None):
        PoolFolder().save(
            ExperiencePool(ExperienceConfig(rollout_n=8)), files / "buffer", 0, identity
        )
        with pytest.raises(ValueError, match="buffer: experience of another data set"):
            verify(
                configuration(
                    files,
                    f"trainer.experience_import={files}/buffer",
                    "trainer.resume_mode=disable",
                )
            )


def test_of_an_interrupted_replacement_the_whole_state_is_read(files):
    checkpoint(files, [f"q{i}" for i in range(16)])
    step = files / "checkpoints" / "global_step_3"
    (step / "experience").rename(step / ".experience.previous")
    verify(configuration(files))
    with pytest.raises(ValueError, match="rollout_n is 8, expected 4"):
        verify(configuration(files, "actor_rollout_ref.rollout.n=4"))
    with pytest.raises(FileNotFoundError, match="a checkpoint without experience"):
        (step / ".experience.previous").rename(step / "elsewhere")
        verify(configuration(files))


@pytest.mark.parametrize("experience", [True, False])
def test_a_checkpoint_of_another_number_of_gpus_is_refused(files, experience):
    checkpoint(files, [f"q{i}" for i in range(16)])
    actor = files / "checkpoints" / "global_step_3" / "actor"
    more = [
        f"trainer.experience={experience}",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    ]
    verify(configuration(files, *more))  # no weights on this disk: nothing is known of them
    weights(actor, ranks=2)
    for ranks in (1, 4):
        with pytest.raises(ValueError) as caught:
            verify(configuration(files, f"trainer.n_gpus_per_node={ranks}", *more))
        said = str(caught.value)
        assert (
            f"trainer.nnodes=1 trainer.n_gpus_per_node={ranks}: {actor.parent} was saved on 2 GPUs"
            in said
        )
        assert f"trainer.experience_import={actor.parent}/experience" in said and "\n" not in said
        verify(
            configuration(
                files, f"trainer.n_gpus_per_node={ranks}", "trainer.resume_mode=disable", *more
            )
        )
    verify(configuration(files, "trainer.n_gpus_per_node=2", *more))
    verify(configuration(files, "trainer.nnodes=2", "trainer.n_gpus_per_node=1", *more))


def test_an_imported_pool_must_be_there_and_of_this_data_set(files):
    with pytest.raises(
        FileNotFoundError, match="experience_import=/nowhere/x: no saved pool there"
    ):
        verify(configuration(files, "trainer.experience_import=/nowhere/x"))
    checkpoint(files, ["other question"])
    teacher = files / "checkpoints" / "global_step_3" / "experience"
    with pytest.raises(ValueError, match="experience of another data set"):
        verify(
            configuration(
                files, f"trainer.experience_import={teacher}", "trainer.resume_mode=disable"
            )
        )


def test_a_damaged_manifest_without_an_older_checkpoint_is_one_line(files):
    checkpoint(files, ["other question"])
    (files / "checkpoints" / "global_step_3" / "experience" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read") as caught:
        verify(configuration(files))
    assert "\n" not in str(caught.value)
    verify(configuration(files, "trainer.resume_mode=disable"))


@pytest.mark.parametrize("experience", [True, False])
def test_a_run_holds_its_folder_with_and_without_replay(files, experience):
    config = configuration(
        files, f"trainer.experience={experience}", "data.dataloader_num_workers=0"
    )
    verify(config)
    resolve(config)
    trainer = object.__new__(ExperienceMixPPOTrainer)
    trainer.config, trainer.trainer_mode, trainer.parameter_sync_step = config, "sync", 1
    trainer.tokenizer = AutoTokenizer.from_pretrained(files / "model")
    trainer.processor = trainer.replay_buffer = None
    trainer._init_dataloader()
    root = files / "checkpoints"
    with trainer.writer, pytest.raises(BlockingIOError), durable.exclusive_on_all_hosts(root):
        pass
