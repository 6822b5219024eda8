"""Entry point ``verl.plugins``: prepares a verl process before verl selects its platform.

verl imports this module in every process of every run, ours or not, so it does nothing unless ``VERL_PLATFORM=cpu``
selects the CPU platform that stock verl lacks. The trainer is not imported here: it would add ten seconds to every
``import verl``; :mod:`exgrpo.main_mix_ppo` registers it.
"""

import os

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    from exgrpo.on_verl.cpu import verl_on_cpu

    verl_on_cpu.install()
