"""Several copies of the model: how many fit on the GPUs, and one process for each copy with its
share of the jobs.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from exgrpo_eval.generate import vllm_engine
from exgrpo_eval.generate.generation import Response
from exgrpo_eval.generate.vllm_engine import EngineSettings, Job

WEIGHTS_SHARE = 0.5  # maximum share of a GPU's memory; the rest is for the KV cache
GRACE_S = 30  # time for a copy to end by itself after it has sent everything


@dataclass(frozen=True)
class Gpus:
    """The GPUs of this machine; `bytes_each` is the memory of one. On a CPU both are 0."""

    count: int
    bytes_each: int


@dataclass(frozen=True)
class ModelSize:
    """What determines how many GPUs a model needs: its weights, and the attention heads that its
    GPUs share evenly.
    """

    weight_bytes: int
    heads: int


@dataclass(frozen=True)
class Layout:
    """How the machine is divided: copies of the model, and GPUs per copy (1 on a CPU)."""

    tensor_parallel_size: int
    copies: int


def layout(gpus: Gpus, model: ModelSize, *, tensor: int | None, data: int | None) -> Layout:
    """GPUs per copy and number of copies; None means as few GPUs as the model needs and as many
    copies as fit.

    Raises:
        ValueError: the flags need more GPUs than there are.
    """
    if tensor is None:
        possible = [
            size for size in (1, 2, 4, 8, 16) if size <= gpus.count and model.heads % size == 0
        ] or [1]
        large_enough = [
            size
            for size in possible
            if model.weight_bytes <= WEIGHTS_SHARE * gpus.bytes_each * size
        ]
        tensor = large_enough[0] if large_enough else possible[-1]
    if data is None:
        data = max(1, gpus.count // tensor)
    if (tensor > 1 or gpus.count) and tensor * data > gpus.count:
        flags = f"--tensor_parallel_size={tensor} --data_parallel_size={data}"
        raise ValueError(f"{flags}: need {tensor * data} GPUs, there are {gpus.count}")
    return Layout(tensor, data)


def generate(
    settings: EngineSettings, jobs: Sequence[Job], copies: int, gpus: int
) -> Iterator[list[Response]]:
    """As `vllm_engine.generate`, with several copies of the model; each yields an empty list when
    it is loaded.

    Raises:
        RuntimeError: a copy failed; the others have been ended.
    """
    copies = min(copies, len(jobs))
    if copies <= 1:
        yield from vllm_engine.generate(settings, jobs)
        return
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    running: dict[Connection, SpawnProcess] = {}
    try:
        for number in range(copies):
            receiver, sender = context.Pipe(duplex=False)
            share = jobs[number::copies]
            visible = _visible(number, settings.tensor_parallel_size) if gpus else None
            running[receiver] = context.Process(
                target=_work, args=(sender, settings, share, visible)
            )
            running[receiver].start()
            sender.close()
        yield from _gather(running)
        for process in running.values():
            process.join(GRACE_S)
    finally:
        for process in running.values():
            process.kill()
            process.join()


def _gather(running: dict[Connection, SpawnProcess]) -> Iterator[list[Response]]:
    reading = set(running)
    while reading:
        for connection in wait(list(reading)):
            assert isinstance(connection, Connection)
            try:
                received = connection.recv()
            except EOFError:
                running[connection].join()
                code = running[connection].exitcode
                raise RuntimeError(
                    f"a copy of the model ended with exit code {code}; --debug shows its log"
                ) from None
            if received is None:
                reading.discard(connection)
            else:
                yield received


def _visible(number: int, tensor: int) -> str:
    """CUDA_VISIBLE_DEVICES of a copy: its part of the caller's devices."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = (
        devices.split(",") if devices else [str(device) for device in range((number + 1) * tensor)]
    )
    return ",".join(names[number * tensor : (number + 1) * tensor])


def _work(
    results: Connection, settings: EngineSettings, jobs: Sequence[Job], visible: str | None
) -> None:
    """The process of one copy; sends None at the end."""
    end_with_parent()
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    for responses in vllm_engine.generate(settings, jobs):
        results.send(responses)
    results.send(None)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent dies, however; nothing if multiprocessing
    did not start it.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent.pid:  # it died before
        os.kill(os.getpid(), signal.SIGKILL)
