"""The configuration as the command composes it; also for the data and the model of the fixture
`files`.
"""

import copy
import functools
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser

CONFIG = Path(__file__).parents[1] / "exgrpo" / "config"


def job(*overrides):
    """What ``--cfg job`` has with these overrides."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    groups = [
        override.input_line for override in parsed if (CONFIG / override.key_or_group).is_dir()
    ]
    config = copy.deepcopy(_composed(*groups))
    ConfigLoaderImpl._apply_overrides_to_config(
        [one for one in parsed if one.input_line not in groups], config
    )
    return config


@functools.cache
def _composed(*groups):
    """Thirty files are read for it, nine tenths of the time of a test that checks one."""
    with initialize_config_module("exgrpo.config", version_base=None):
        return compose("exgrpo_trainer", list(groups))


def overrides(files, *more):
    return [
        f"data.train_files={files}/data.parquet",
        f"data.val_files={files}/data.parquet",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "data.max_prompt_length=64",
        "data.max_response_length=64",
        "reward.custom_reward_function.reward_kwargs.require_think=False",
        f"actor_rollout_ref.model.path={files}/model",
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.rollout.n=8",
        f"trainer.default_local_dir={files}/checkpoints",
        *more,
    ]


def configuration(files, *more):
    return job(*overrides(files, *more))
