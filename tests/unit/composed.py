"""The configuration as the command composes it, for the data and the model of the fixture `files`."""

from pathlib import Path

from hydra import compose, initialize_config_dir

CONFIG = Path(__file__).parents[2] / "exgrpo" / "config"


def overrides(files, *more):
    return [
        f"data.train_files={files}/data.parquet",
        f"data.val_files={files}/data.parquet",
        "data.train_batch_size=8",
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
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("exgrpo_trainer", overrides(files, *more))
