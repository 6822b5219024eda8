"""Several copies of the model: how many the GPUs hold, and one process for each, which gets its share of the jobs."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import vllm_engine
from generation import Response
from vllm_engine import EngineSettings, Job

WEIGHTS_SHARE = 0.5  # of a GPU's memory, at most; the rest is for keys and values
GRACE_S = 30  # for a copy to end of its own accord, once it has sent all


def sizes(
    tensor: int | None, data: int | None, *, gpus: int, gpu_bytes: int, weight_bytes: int, heads: int
) -> tuple[int, int]:
    """GPUs a copy of the model, and copies; where None is given, the fewest GPUs that hold it, and all the copies.

    Args:
        gpu_bytes: memory of one GPU.
        heads: attention heads, which the GPUs of a copy share evenly.

    Raises:
        ValueError: more GPUs are asked for than there are.
    """
    if tensor is None:
        fitting = [size for size in (1, 2, 4, 8, 16) if size <= gpus and heads % size == 0] or [1]
        roomy = [size for size in fitting if weight_bytes <= WEIGHTS_SHARE * gpu_bytes * size]
        tensor = roomy[0] if roomy else fitting[-1]
    if data is None:
        data = max(1, gpus // tensor)
    if (tensor > 1 or gpus) and tensor * data > gpus:
        asked = f"--tensor_parallel_size={tensor} --data_parallel_size={data}"
        raise ValueError(f"{asked}: need {tensor * data} GPUs, there are {gpus}")
    return tensor, data


def generate(settings: EngineSettings, jobs: Sequence[Job], copies: int, gpus: int) -> Iterator[list[Response]]:
    """As `vllm_engine.generate`, by as many copies of the model; an empty list comes from each once it is loaded.

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
            ours, theirs = context.Pipe(duplex=False)
            share = jobs[number::copies]
            visible = _visible(number, settings.tensor_parallel_size) if gpus else None
            running[ours] = context.Process(target=_work, args=(theirs, settings, share, visible, os.getpid()))
            running[ours].start()
            theirs.close()
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
                raise RuntimeError(f"a copy of the model ended with exit code {code}; --debug shows its log") from None
            if received is None:
                reading.discard(connection)
            else:
                yield received


def _visible(number: int, tensor: int) -> str:
    """CUDA_VISIBLE_DEVICES of a copy: its part of the caller's."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(device) for device in range((number + 1) * tensor)]
    return ",".join(names[number * tensor : (number + 1) * tensor])


def _work(results: Connection, settings: EngineSettings, jobs: Sequence[Job], visible: str | None, parent: int) -> None:
    """The process of one copy; None is sent at the end."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with the process that started it
    if os.getppid() != parent:
        return
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    for responses in vllm_engine.generate(settings, jobs):
        results.send(responses)
    results.send(None)
