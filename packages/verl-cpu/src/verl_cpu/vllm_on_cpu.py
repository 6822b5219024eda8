"""Entry point ``vllm.general_plugins``: patches with which vLLM 0.24 and 0.28 accept new weights on
a CPU.
"""

from __future__ import annotations

import functools

from verl_cpu import is_asked_for, weight_socket


def install() -> None:
    """Adapt this vLLM process; does nothing unless ``VERL_PLATFORM=cpu``. Safe to call more than
    once.
    """
    if not is_asked_for():
        return
    _keep_packed_weights()
    _map_shared_weights_by_torch()
    weight_socket.install()


def _keep_packed_weights() -> None:
    """Keep a linear layer's weight besides its packed form: the next weight update looks it up by
    name.

    verl runs process_weights_after_loading after each update, which packs the new values.
    """
    from vllm.model_executor.layers import utils

    real = utils.dispatch_cpu_unquantized_gemm
    if getattr(real, "keeps_weight", False):
        return

    @functools.wraps(real)
    def dispatch(layer, remove_weight: bool) -> None:  # type: ignore[no-untyped-def]
        real(layer, remove_weight=False)

    dispatch.keeps_weight = True  # type: ignore[attr-defined]
    utils.dispatch_cpu_unquantized_gemm = dispatch


def _map_shared_weights_by_torch() -> None:
    """Let torch map the received segment: ``tensor.to("cpu")`` is a view, which would keep the
    segment from closing.

    The mapping is torch's own and lives as long as its tensors; the segment's memoryview is not
    exported.
    """
    import torch
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

    def rebuild_shared_memory(name: str, size: int, dtype=torch.uint8):  # type: ignore[no-untyped-def]
        shm = transfer.shared_memory.SharedMemory(name=name)
        return torch.from_file(f"/dev/shm/{name}", shared=True, size=size, dtype=dtype), shm

    transfer.rebuild_shared_memory = rebuild_shared_memory
