"""The console command `exgrpo-train`: `exgrpo.main_mix_ppo`, with a help that loads nothing."""

import os
import sys
from pathlib import Path

from exgrpo import __version__
from exgrpo.console import in_one_line, phase, refused

HELP = """exgrpo-train key=value ...: train with ExGRPO, the same as python -m exgrpo.main_mix_ppo

Keys are verl's own and exgrpo's below trainer. (docs/keys.md), as Hydra overrides:
  exgrpo-train trainer.experience_ratio=0.5 actor_rollout_ref.model.path=MODEL ...
  exgrpo-train stack=one_gpu ...     settings for one GPU; stack=cpu: for a CPU
  exgrpo-train --cfg job ...         only prints the settings that a run would have
  exgrpo-train method=replay_only ...    adds replay to a verl command of yours, and nothing else
  exgrpo-train --from-release SCRIPT     prints the command for a script of the authors' release
The released recipe with all its settings: bash exp_scripts/run_exgrpo.sh in a checkout.

  --help, --version"""
PACKAGES = (
    "training needs bash exp_scripts/setup_gpu.sh (setup_cpu.sh for a CPU), "
    "or pip install '.[verl]' in exgrpo's folder"
)


def train() -> None:
    """Hydra overrides are read from the command line."""
    if answered(HELP):
        return
    if not sys.argv[1:]:
        refused("exgrpo-train", ValueError("needs settings, key=value; exgrpo-train --help"))
    with in_one_line("exgrpo", packages=PACKAGES):
        if sys.argv[1:2] == ["--from-release"] and len(sys.argv) == 3:
            return _from_release(Path(sys.argv[2]))
        with phase("loading Hydra and verl"):
            from exgrpo.main_mix_ppo import main
        main()


def _from_release(script: Path) -> None:
    from exgrpo.preflight.released import command

    try:
        print(command(script, os.environ))
    except (OSError, ValueError) as error:
        refused("exgrpo-train", error)


def answered(help_text: str) -> bool:
    """Whether the command line only asks for help or the version, which is then printed."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(help_text)
    elif sys.argv[1:] == ["--version"]:
        print(f"exgrpo {__version__}")
    else:
        return False
    return True
