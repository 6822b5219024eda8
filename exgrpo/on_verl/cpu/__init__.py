"""verl and vLLM on a CPU: a platform, and patches for the few places where either assumes an accelerator.

``verl_on_cpu.install`` is called through the entry point ``verl.plugins``, ``vllm_on_cpu.install`` through
``vllm.general_plugins``; both only if ``VERL_PLATFORM=cpu`` is set in the environment. Each patch names the code of
verl 0.9.1 or of vLLM (0.24, 0.28) that requires it, so that an upgrade can drop it.
"""
