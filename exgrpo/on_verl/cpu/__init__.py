"""verl and vLLM on a CPU: a platform, and the few places where either assumes an accelerator.

``verl_on_cpu.install`` is called through the entry point ``verl.plugins``, ``vllm_on_cpu.install`` through
``vllm.general_plugins``; both only where the environment says ``VERL_PLATFORM=cpu``. Each adaptation names the line of
verl 0.9.1 or of vLLM (0.24, 0.28) it is for, so that an upgrade can drop it.
"""
