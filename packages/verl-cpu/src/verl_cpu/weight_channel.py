"""A weight channel between an actor and a rollout server of its own, on a CPU: a file in shared
memory.

verl's separate_async mode needs one (``rollout.checkpoint_engine.backend=shared_memory``); those
that verl brings need accelerators. ``checkpoint_engine.custom_backend_module`` names this module,
so verl imports it in the actor too, where that mode saves weights to the memory of the CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import uuid
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils import fsdp_utils

FOLDER = Path("/dev/shm")
POLL_S = 0.01
PATIENCE_S = 600  # for the actor's weights; verl itself waits without end


@CheckpointEngineRegistry.register("shared_memory")
class SharedMemoryChannel(CheckpointEngine):
    """The actor's first rank writes all weights to a new file and renames it; each rollout worker
    reads it.

    Args:
        bucket_size, is_master: verl's; unused, since the file holds all of the weights.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.rank, self.file = 0, Path()

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        for left in FOLDER.glob("verl_cpu_weights_*"):  # by a run that was killed in an update
            if not Path(f"/proc/{left.name.split('_')[3]}").exists():
                with contextlib.suppress(OSError):  # another user's
                    left.unlink()
        file = str(FOLDER / f"verl_cpu_weights_{os.getpid()}_{uuid.uuid4().hex}")
        return tuple(  # type: ignore[return-value]
            {"file": [file] * size, "rank": list(range(size))}
            for size in (actor_wg_world_size, rollout_world_size)
        )

    def init_process_group(self, file: str, rank: int) -> None:
        """Called before each update, with the file for it."""
        self.file, self.rank = Path(file), rank

    def finalize(self) -> None:
        """Called after each update, on both sides."""
        self.file.unlink(missing_ok=True)

    async def send_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        global_steps: int | None = None,
    ) -> None:
        """Every rank gathers the weights, as the generator's collectives require; the first writes
        them.
        """
        gathered = {name: tensor.detach().contiguous().clone() for name, tensor in weights}
        if self.rank == 0:
            partial = self.file.with_suffix(".partial")
            try:
                save_file(gathered, partial)
                partial.rename(self.file)
            finally:
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """The weights, once they are there; TimeoutError if the actor does not write them."""
        for _ in range(round(PATIENCE_S / POLL_S)):
            if self.file.exists():
                break
            await asyncio.sleep(POLL_S)
        else:
            raise TimeoutError(
                f"no weights of step {global_steps} in {self.file} after {PATIENCE_S} s"
            )
        for name, tensor in load_file(self.file).items():
            yield name, tensor


def _copy_saved_shards() -> None:
    """verl saves weights by ``tensor.cpu()``, which on a CPU is the weight itself: later updates
    would change it.
    """
    real = fsdp_utils.fsdp2_sharded_save_to_cpu

    @functools.wraps(real)
    def save(model: torch.nn.Module) -> Any:
        state, spec = real(model)
        return {name: (shard.clone(), its_spec) for name, (shard, its_spec) in state.items()}, spec

    fsdp_utils.fsdp2_sharded_save_to_cpu = save


_copy_saved_shards()
