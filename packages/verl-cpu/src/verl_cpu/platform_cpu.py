"""The CPU as a verl platform (``VERL_PLATFORM=cpu``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase

from verl_cpu import device, is_asked_for


class PlatformCPU(PlatformBase):
    """One process is one logical device. Never auto-detected, so that a plain verl run is not
    affected.
    """

    device_name = "cpu"  # type: ignore[assignment]
    vendor_name = "cpu"  # type: ignore[assignment]
    device_module: ModuleType = device  # type: ignore[assignment]

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return is_asked_for()

    def current_device(self) -> Any:
        return device.current_device()

    def device_count(self) -> int:
        return device.device_count()

    def set_device(self, device_index: int) -> None:
        device.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        """Work on a CPU is complete when its call returns."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """No allocator to configure."""

    def empty_cache(self) -> None:
        device.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # for the logical GPUs that Ray assigns; there is no physical one to hide
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        # verl counts "GPU" or "NPU" only; config/stack/cpu.yaml declares logical GPUs to Ray
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False  # weights then travel through shared memory

    def cudart(self) -> None:
        return None
