"""Entry point ``verl.plugins``: prepares a verl process before verl selects its platform.

verl imports this module in every process of every run, so it does nothing unless it is asked.
"""

import sys

from verl_cpu import is_asked_for

if is_asked_for():
    try:
        from verl_cpu import verl_on_cpu

        verl_on_cpu.install()
    except Exception as error:  # verl would go on and mention it at DEBUG level, which nobody sees
        sys.exit(
            "verl_cpu: VERL_PLATFORM=cpu: verl's CPU platform cannot be loaded: "
            f"{type(error).__name__}: {error}; the README of verl-cpu has the versions it is for"
        )
