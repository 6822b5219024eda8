"""Train with ExGRPO: ``python -m exgrpo.main_mix_ppo key=value ...`` (Hydra overrides; ``--cfg job`` only prints).

The configuration is verl's own plus the ``trainer.*`` keys of docs/keys.md. Errors in it are reported in one line
before Ray starts. ``stack=cpu`` runs the same program on a CPU.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import hydra
from omegaconf import DictConfig

from exgrpo.on_verl import resolvers
from exgrpo.on_verl.cpu.prepared_workers import prepared_workers
from exgrpo.on_verl.task_runner import MixTaskRunner, OnThisNode
from exgrpo.preflight.checks import resolve, verify
from exgrpo.prepared.uncollected import uncollected

resolvers.register()  # before Hydra composes
NODE_TOO_SLOW = "node timed out during startup"  # of Ray's error after 30 s, which no setting changes
CONFIG = str(Path(__file__).parent / "config")  # a console command would not find a relative path


@hydra.main(config_path=CONFIG, config_name="exgrpo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    """Check the configuration, then start verl."""
    with prepared_workers(config):  # imports while the configuration is checked
        with uncollected():
            try:
                verify(config)
                verify_plugin()
            except (ValueError, FileNotFoundError) as error:
                sys.exit(f"exgrpo: {error}")
            resolve(config)
            verify_for_verl(config)
        train(config)


def verify_plugin() -> None:
    """ValueError, in one line, if ``VERL_PLATFORM=cpu`` asks for exgrpo.plugin and verl has not loaded it."""
    if os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    import verl  # noqa: F401  (loads the entry points of the group verl.plugins)

    if "exgrpo.plugin" in sys.modules:  # a module whose import failed is taken out again
        return
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip()
    named = {name.strip() for name in policy.lower().split(",")}
    if not any(entry.value == "exgrpo.plugin" for entry in entry_points(group="verl.plugins")):
        reason = "exgrpo is on the path but not installed: pip install --no-deps -e ."
    elif not named & {"auto", "exgrpo"}:
        reason = f"VERL_USE_EXTERNAL_PLUGINS={policy}: must be auto or name exgrpo"
    else:
        reason = "its import failed, a line above says why"
    raise ValueError(f"VERL_PLATFORM=cpu: verl has not loaded exgrpo.plugin: {reason}")


def verify_for_verl(config: DictConfig) -> None:
    """verl's own check."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))


def train(config: DictConfig) -> None:
    """Run verl's own driver, with our task runner and trainer."""
    import ray
    from verl.trainer.main_ppo import run_ppo

    for last in (False, False, True):
        try:
            return run_ppo(config, task_runner_class=OnThisNode(ray.remote(MixTaskRunner)))
        except Exception as error:
            if last or NODE_TOO_SLOW not in str(error):
                raise
            print("exgrpo: Ray did not start within its 30 s; the machine is busy, so it is started again", flush=True)


if __name__ == "__main__":
    main()
