"""Entry point ``verl.plugins``: what a verl process needs before it asks for its platform.

verl imports this module in every process of every run, ours or not, so it does nothing unless ``VERL_PLATFORM=cpu``
asks for the CPU platform that stock verl lacks. The trainer is not imported here: it would cost every ``import verl``
ten seconds; :mod:`exgrpo.main_mix_ppo` registers it.
"""

import os

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    from exgrpo.on_verl.cpu import verl_on_cpu

    verl_on_cpu.install()
