"""vLLM as this evaluation uses it: token ids and a seed in, each response out as soon as it is
finished.

A sample depends on its prompt, its seed, the settings, vLLM's version and the machine, and, in the
last bits of the logits, on the other samples of its batch. With max_num_seqs=1 there is no batch.
Prefix caching is off, since a prompt with a cached start is computed in another shape; it would
save little, as answers are far longer than prompts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from exgrpo_eval.generate.generation import Response

CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",  # compiling two sampling kernels costs 20 s and a C++ compiler
    "OMP_WAIT_POLICY": "PASSIVE",
}


@dataclass(frozen=True)
class Sampling:
    """How each token is drawn, and the maximum number of tokens."""

    temperature: float
    top_p: float
    max_tokens: int


@dataclass(frozen=True)
class EngineSettings:
    """How the model is loaded and sampled from; can be pickled."""

    model: str
    dtype: str
    max_model_len: int
    max_num_seqs: int | None
    tensor_parallel_size: int
    gpu_memory_utilization: float
    sampling: Sampling


@dataclass(frozen=True)
class Job:
    """One response to generate, for the request at position `place` of a list."""

    place: int
    token_ids: tuple[int, ...]
    seed: int


def prepare(gpus: int, copies: int, debug: bool) -> None:
    """Set environment variables for vLLM, before it is imported; variables that are already set are
    kept.

    Args:
        gpus: 0 for a CPU, where the KV cache gets a quarter of the free memory, 1 to 8 GiB per
            copy.
        copies: number of copies of the model on this machine.
    """
    values = {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    # The engine runs in the process that steps it, on GPUs too. In a process of its own it watches
    # no parent: after a
    # kill it would stay and keep its GPUs' memory. vLLM schedules a batch ahead either way, so that
    # a GPU has work while the tokens before are handled.
    values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # FlashInfer's sampler is compiled in the warm-up, which needs a CUDA toolkit that many nodes
    # lack (vllm #49497).
    # vLLM does not use it for requests with seeds, as all of these are.
    values["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if not debug:
        values["VLLM_LOGGING_LEVEL"] = "ERROR"
    if not gpus:
        free = psutil.virtual_memory().available >> 30
        cores = len(os.sched_getaffinity(0))
        values |= CPU | {
            "VLLM_CPU_KVCACHE_SPACE": str(min(8, max(1, free // 4 // copies))),
            "OMP_NUM_THREADS": str(max(1, cores // copies)),
        }
    for name, value in values.items():
        os.environ.setdefault(name, value)


def context_length(model: str, dtype: str) -> int:
    """Maximum tokens of prompt and response together, as vLLM reads it from the model's
    configuration.
    """
    from vllm import EngineArgs

    return int(EngineArgs(model=model, dtype=dtype).create_model_config().max_model_len)


def generate(settings: EngineSettings, jobs: Sequence[Job]) -> Iterator[list[Response]]:
    """Yield responses as they finish, grouped by engine step; first an empty list, when the model
    is loaded.

    Raises:
        RuntimeError: vLLM gave up on a request.
    """
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    # as in LLM.generate: in another context vLLM uses a server's defaults, 128 responses at a time
    engine = LLMEngine.from_engine_args(
        _engine_args(settings), usage_context=UsageContext.LLM_CLASS
    )
    yield []
    for job in jobs:
        params = _sampling_params(settings.sampling, job.seed)
        engine.add_request(str(job.place), {"prompt_token_ids": list(job.token_ids)}, params)
    while engine.has_unfinished_requests():
        done = [_response(output) for output in engine.step() if output.finished]
        if done:
            yield done


def _engine_args(settings: EngineSettings) -> Any:
    from vllm import EngineArgs
    from vllm.platforms import current_platform

    machine: dict[str, Any] = {"gpu_memory_utilization": settings.gpu_memory_utilization}
    if current_platform.is_cpu():
        machine = {
            "enforce_eager": True,
            "distributed_executor_backend": "uni",
            # after part of a prompt vLLM rewinds the request's generator, which torch cannot do on
            # a CPU
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(4096, settings.max_model_len, settings.max_num_seqs or 0),
        }
    if settings.max_num_seqs:
        machine["max_num_seqs"] = settings.max_num_seqs
    return EngineArgs(
        model=settings.model,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        tensor_parallel_size=settings.tensor_parallel_size,
        worker_extension_cls="exgrpo_eval.generate.vllm_worker.EndsWithParent",
        enable_prefix_caching=False,
        disable_log_stats=True,
        use_tqdm_on_load=False,
        **machine,
    )


def _sampling_params(sampling: Sampling, seed: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seed=seed,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _response(output: Any) -> Response:
    (completion,) = output.outputs
    if completion.finish_reason not in ("stop", "length"):
        raise RuntimeError(
            f"vLLM ended request {output.request_id} by {completion.finish_reason!r}"
        )
    return Response(
        int(output.request_id), completion.text, len(completion.token_ids), completion.finish_reason
    )
