"""Train with ExGRPO: ``python -m exgrpo.main_mix_ppo key=value ...`` (Hydra overrides; ``--cfg job`` only prints).

The configuration is verl's own plus the ``trainer.*`` keys of docs/keys.md. Errors in it are reported in one line
before Ray starts. ``stack=cpu`` runs the same program on a CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from exgrpo.on_verl import released_scale
from exgrpo.on_verl.task_runner import MixTaskRunner
from exgrpo.preflight.checks import resolve, verify

released_scale.register()  # before Hydra composes
CONFIG = str(Path(__file__).parent / "config")  # a console command would not find a relative path


@hydra.main(config_path=CONFIG, config_name="exgrpo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    """Check the configuration, then start verl."""
    try:
        verify(config)
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"exgrpo: {error}")
    resolve(config)
    train(config)


def train(config: DictConfig) -> None:
    """Run verl's own driver, with our task runner and trainer."""
    import ray
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    run_ppo(config, task_runner_class=ray.remote(MixTaskRunner))


if __name__ == "__main__":
    main()
