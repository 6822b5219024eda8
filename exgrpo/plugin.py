"""Entry point ``verl.plugins``: prepares a verl process before verl selects its platform.

verl imports this module in every process of every run, ours or not, so it does nothing unless ``VERL_PLATFORM=cpu``
selects the CPU platform that stock verl lacks. The trainer is not imported here: it would add ten seconds to every
``import verl``; :mod:`exgrpo.main_mix_ppo` registers it.
"""

import os
import sys

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    try:
        from exgrpo.on_verl.cpu import verl_on_cpu

        verl_on_cpu.install()
    except Exception as error:  # verl goes on and mentions it at DEBUG level, which nobody sees
        print(
            f"exgrpo: VERL_PLATFORM=cpu: verl's CPU platform is not loaded: {type(error).__name__}: {error}; "
            "bash exp_scripts/setup_cpu.sh installs the versions it is made for",
            file=sys.stderr,
            flush=True,
        )
        raise
