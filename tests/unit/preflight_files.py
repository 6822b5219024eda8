"""Questions and a model on disk, and configurations that use them, for the tests of the preflight."""

import shutil
from pathlib import Path

import pandas as pd
from hydra import compose, initialize_config_dir

CONFIG = Path(__file__).parents[2] / "exgrpo" / "config"
BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"


def write_files(folder):
    """Write questions and a model into the folder; the folder."""
    rows = [{"prompt": [{"role": "user", "content": f"q{i}"}], "data_source": "t"} for i in range(16)]
    pd.DataFrame(rows).to_parquet(folder / "data.parquet")
    shutil.copytree(BASE_MODEL, folder / "model")
    return folder


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
