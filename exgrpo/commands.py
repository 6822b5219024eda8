"""The console command `exgrpo-train`: `exgrpo.main_mix_ppo`, with a help that loads nothing."""

import sys

from exgrpo import __version__
from exgrpo.console import in_one_line, phase

HELP = """exgrpo-train key=value ...: train with ExGRPO, the same as python -m exgrpo.main_mix_ppo

Keys are verl's own and exgrpo's below trainer. (docs/keys.md), as Hydra overrides:
  exgrpo-train trainer.experience_ratio=0.5 actor_rollout_ref.model.path=MODEL ...
  exgrpo-train stack=one_gpu ...     settings for one GPU; stack=cpu: for a CPU
  exgrpo-train --cfg job ...         only prints the settings that a run would have
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
    with in_one_line("exgrpo", packages=PACKAGES):
        with phase("loading Hydra and verl"):
            from exgrpo.main_mix_ppo import main
        main()


def answered(help_text: str) -> bool:
    """Whether the command line only asks for help or the version, which is then printed."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(help_text)
    elif sys.argv[1:] == ["--version"]:
        print(f"exgrpo {__version__}")
    else:
        return False
    return True
