"""The part of ``torch.cuda``'s interface that verl calls, for the CPU: verl's "device module"."""

from __future__ import annotations

import psutil
import torch
from torch.cpu import (  # noqa: F401  (re-exported: verl calls them on the device module)
    Event,
    Stream,
    current_stream,
    is_available,
    stream,
    synchronize,
)

get_rng_state = torch.get_rng_state
set_rng_state = torch.set_rng_state
manual_seed = manual_seed_all = torch.manual_seed


def current_device() -> torch.device:
    """``torch.device("cpu")``: a CPU has no index, and torch rejects the ``cpu:0`` that verl would
    build.
    """
    return torch.device("cpu")


def device_count() -> int:
    """One logical device per process."""
    return 1


def set_device(device: object) -> None:
    """Nothing to select."""


def get_device_name(device: object = None) -> str:
    """A name that is not in verl's table of peak FLOPS, so that verl reports no utilisation."""
    return "cpu"


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Free and total memory of the machine, in bytes."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def memory_allocated(device: object = None) -> int:
    """Resident memory of this process, in bytes."""
    return psutil.Process().memory_info().rss


memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated


def empty_cache() -> None:
    """The CPU allocator keeps no cache of its own."""


def ipc_collect() -> None:
    """No device memory is shared between processes."""


def set_per_process_memory_fraction(fraction: float, device: object = None) -> None:
    """The operating system decides."""
