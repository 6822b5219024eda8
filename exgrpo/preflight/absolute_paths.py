"""Makes paths absolute: verl's runner may have another working directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from exgrpo.data_files import is_local
from exgrpo.open_table import file_of

# one path or a list of them; always treated as paths, whether or not they exist
_PATHS = [
    "data.train_files",
    "data.val_files",
    "trainer.default_local_dir",
    "trainer.resume_from_path",
    "trainer.experience_import",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
]
# these may also be names (of a model hub, of a module): treated as paths only if they exist
_PATHS_OR_NAMES = [
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "data.custom_cls.path",
    "reward.custom_reward_function.path",
    "trainer.v1.sampler.custom_sampler.path",
]
# references to user-defined rules, path/file.py:name
_RULES = [
    "trainer.exp_bucket_manager",
    "trainer.exp_metric",
    "trainer.exp_difficulty",
    "trainer.exp_retirement",
    "trainer.exp_eviction",
    "trainer.exp_same",
    "trainer.exp_question_choice",
    "trainer.exp_group_choice",
    "actor_rollout_ref.actor.policy_loss.off_policy_reshape",
    "actor_rollout_ref.actor.policy_loss.on_policy_reshape",
    "actor_rollout_ref.actor.policy_loss.off_policy_loss",
]


def make_absolute(config: DictConfig) -> None:
    """Rewrite local paths, ``~`` and relative ones, in place; remote ones are left alone."""
    changes = dict.fromkeys(_PATHS, _absolute) | dict.fromkeys(_PATHS_OR_NAMES, _absolute_if_there)
    for key, change in (changes | dict.fromkeys(_RULES, _absolute_rule)).items():
        value = OmegaConf.select(config, key)
        if isinstance(value, str | list | ListConfig):  # a rule's key may be False
            OmegaConf.update(config, key, _each(value, change))


def name_log_folders(config: DictConfig, environment: Mapping[str, str]) -> None:
    """Tell the runner's process where TensorBoard's and the file logger's files go, by verl's
    variables, in place.

    verl takes them relative to the runner's folder, and a Ray that runs already does not have the
    command's variables.
    """
    trainer = config.trainer
    run = os.path.join(trainer.project_name, trainer.experiment_name)
    folders = {
        "tensorboard": {"TENSORBOARD_DIR": os.path.join("tensorboard_log", run)},
        # the second, a file, goes before
        "file": {"VERL_FILE_LOGGER_ROOT": ".", "VERL_FILE_LOGGER_PATH": ""},
    }
    loggers = trainer.logger if isinstance(trainer.logger, list | ListConfig) else [trainer.logger]
    for name, default in (item for logger in loggers for item in folders.get(logger, {}).items()):
        key = f"ray_kwargs.ray_init.runtime_env.env_vars.{name}"
        path = OmegaConf.select(config, key, default=environment.get(name, default))
        if path:
            OmegaConf.update(config, key, _absolute(path), force_add=True)


def _each(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, list | ListConfig):
        return [change(str(path)) for path in value]
    return change(str(value))


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)) if path and is_local(path) else path


def _absolute_rule(name: str) -> str:
    file = file_of(name)
    return name if file is None else f"{_absolute(file)}:{name.rpartition(':')[2]}"


def _absolute_if_there(path: str) -> str:
    absolute = _absolute(path)
    return absolute if os.path.exists(absolute) else path
