"""The console command `exgrpo-train`: `python -m exgrpo.main_mix_ppo`, with one line where the
stack is missing.
"""

import sys


def train() -> None:
    """Hydra overrides are read from the command line."""
    try:
        from exgrpo.main_mix_ppo import main
    except ModuleNotFoundError as error:
        stack = (
            "bash exp_scripts/setup_gpu.sh (setup_cpu.sh for a CPU), "
            "or pip install '.[verl]' in exgrpo's folder"
        )
        sys.exit(f"exgrpo: {error.name} is not installed, which training needs: {stack}")
    main()
