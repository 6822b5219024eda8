"""verl and vLLM on a CPU: a platform, and patches for the few places where either assumes an
accelerator.

``plugin`` is verl's entry point, ``vllm_on_cpu.install`` vLLM's; both act only where
:func:`is_asked_for`. Each patch names the code of verl or of vLLM (0.24, 0.28) that requires
it, so that an upgrade can drop it. ``stack/`` has the settings, which Hydra finds by
``hydra_plugins/verl_cpu_stack.py``.
"""

import os


def is_asked_for() -> bool:
    """Whether ``VERL_PLATFORM=cpu`` is set in the environment."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
