"""A path means the same file on every node: the runner's working directory is not that of the
command.
"""

import pytest
from omegaconf import OmegaConf

from exgrpo.experience.config import ExperienceConfig
from exgrpo.loss_settings import LossSettings
from exgrpo.preflight.absolute_paths import make_absolute, name_log_folders


@pytest.fixture
def config():
    return OmegaConf.create(
        {
            "data": {"train_files": ["a.parquet", "hdfs://b", "/c"], "val_files": "~/v.parquet"},
            "trainer": {
                "project": "p",
                "default_local_dir": "runs/${trainer.project}",
                "resume_from_path": "runs/global_step_3",
                "experience_import": "teacher",
                "rollout_data_dir": None,
                "validation_data_dir": "dump",
            },
            "actor_rollout_ref": {"model": {"path": "here", "tokenizer_path": "org/name"}},
            "reward": {"custom_reward_function": {"path": "pkg://exgrpo.math_verify_reward"}},
        }
    )


def test_relative_paths_are_those_of_the_command(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "here").mkdir()
    make_absolute(config)
    assert config.data.train_files == [f"{tmp_path}/a.parquet", "hdfs://b", "/c"]
    assert config.data.val_files == "/home/me/v.parquet"
    assert config.trainer.default_local_dir == f"{tmp_path}/runs/p"
    assert config.trainer.resume_from_path == f"{tmp_path}/runs/global_step_3"
    assert config.trainer.experience_import == f"{tmp_path}/teacher"
    assert (
        config.trainer.validation_data_dir == f"{tmp_path}/dump"
        and config.trainer.rollout_data_dir is None
    )
    assert config.actor_rollout_ref.model.path == f"{tmp_path}/here"


def test_logs_are_where_the_command_is_given_or_its_variables_say(tmp_path, monkeypatch):
    """Not in the runner's folder, which on a cluster is another one, on another node maybe."""
    monkeypatch.chdir(tmp_path)
    names = {"project_name": "p", "experiment_name": "e"}
    config = OmegaConf.create(
        {"trainer": {"logger": ["console", "tensorboard", "file"], **names}, "ray_kwargs": {}}
    )
    name_log_folders(config, {})
    variables = config.ray_kwargs.ray_init.runtime_env.env_vars
    assert variables == {
        "TENSORBOARD_DIR": f"{tmp_path}/tensorboard_log/p/e",
        "VERL_FILE_LOGGER_ROOT": f"{tmp_path}",
    }
    variables.TENSORBOARD_DIR = "/given"
    name_log_folders(config, {"TENSORBOARD_DIR": "/other", "VERL_FILE_LOGGER_PATH": "run.jsonl"})
    assert (
        variables.TENSORBOARD_DIR == "/given"
        and f"{tmp_path}/run.jsonl" == variables.VERL_FILE_LOGGER_PATH
    )
    config = OmegaConf.create({"trainer": {"logger": "console", **names}})
    name_log_folders(config, {"TENSORBOARD_DIR": "x"})
    assert "ray_kwargs" not in config


def test_names_stay_names(config):
    make_absolute(config)
    assert config.actor_rollout_ref.model == {"path": "here", "tokenizer_path": "org/name"}
    assert config.reward.custom_reward_function.path == "pkg://exgrpo.math_verify_reward"


def test_every_key_that_takes_a_rule_of_a_file_is_made_absolute(tmp_path, monkeypatch):
    """A key takes one if its check accepts this function, which has any arguments."""
    (tmp_path / "mine.py").write_text("def rule(*any):\n    return any\n")
    rule, sections = (
        f"{tmp_path}/mine.py:rule",
        {
            "trainer": [
                key for key in ExperienceConfig.meanings() if key != "experience_import"
            ],  # any text is a path
            "actor_rollout_ref.actor.policy_loss": list(LossSettings.__dataclass_fields__),
        },
    )
    taking = [
        f"{node}.{key}" for node, keys in sections.items() for key in keys if takes(node, key, rule)
    ]
    assert len(taking) == 11 and "trainer.exp_metric" in taking
    monkeypatch.chdir(tmp_path)
    config = OmegaConf.create()
    for key in taking:
        OmegaConf.update(config, key, "mine.py:rule", force_add=True)
    make_absolute(config)
    assert {key: OmegaConf.select(config, key) for key in taking} == dict.fromkeys(taking, rule)


def takes(node, key, value):
    try:
        if node == "trainer":
            ExperienceConfig.from_mapping({key: value}, 8)
        else:
            LossSettings.from_mapping({key: value})
    except ValueError:
        return False
    return True
