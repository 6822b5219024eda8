"""Relative paths become absolute where the command is given: verl's runner may be on a node with another folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from exgrpo.preflight.train_files import is_local

# one path or a list of them; each is read as a path whether or not it is there
_PATHS = [
    "data.train_files",
    "data.val_files",
    "trainer.default_local_dir",
    "trainer.resume_from_path",
    "trainer.experience_import",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
]
# these may also be names (of a model hub, of a module): paths where something is there
_PATHS_OR_NAMES = [
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "data.custom_cls.path",
    "reward.custom_reward_function.path",
    "trainer.v1.sampler.custom_sampler.path",
]


def make_absolute(config: DictConfig) -> None:
    """Rewrite the configuration's local paths, ``~`` and relative ones, in place; remote ones are left alone."""
    for keys, change in ((_PATHS, _absolute), (_PATHS_OR_NAMES, _absolute_if_there)):
        for key in keys:
            value = OmegaConf.select(config, key)
            if value is not None:
                OmegaConf.update(config, key, _each(value, change))


def _each(value: Any, change: Callable[[str], str]) -> Any:
    return [change(str(one)) for one in value] if isinstance(value, list | ListConfig) else change(str(value))


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)) if path and is_local(path) else path


def _absolute_if_there(path: str) -> str:
    absolute = _absolute(path)
    return absolute if os.path.exists(absolute) else path
