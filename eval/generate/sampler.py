"""From requests to finished samples: layout of the machine, the engine's settings, progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from exgrpo_eval.generate import copies, generation, model_files, served, vllm_engine
from exgrpo_eval.generate.copies import Gpus, Layout, ModelSize
from exgrpo_eval.generate.generation import Request, Response
from exgrpo_eval.generate.partial_file import PartialFile
from exgrpo_eval.generate.served import Server
from exgrpo_eval.generate.settings import Settings
from exgrpo_eval.generate.vllm_engine import EngineSettings, Job, Sampling
from exgrpo_tools.inspect.text import print_lines


def generate_missing(
    settings: Settings, model: Path | Server, requests: Sequence[Request], partial: PartialFile
) -> None:
    """Generate the requests that the partial file lacks; each is added to it as soon as it is
    finished.

    Raises:
        ValueError: a prompt is too long for the model, or the flags need more GPUs than there are.
        RuntimeError: the engine or the server ended a request with an error.
    """
    missing = [place for place, request in enumerate(requests) if request.key not in partial.rows]
    done = len(requests) - len(missing)
    if done:
        print(f"continuing after {done} of {len(requests)} samples", flush=True)
    if not missing:
        return
    from tqdm import tqdm

    if isinstance(model, Server):
        print_lines([f"asking {model.model} at {model.base_url}"])
        batches = served.generate(model, settings, {place: requests[place] for place in missing})
    else:
        batches = _local(settings, model, requests, missing)
    next(batches)  # the model is loaded: timing begins here
    partial.begin()
    tokens = 0
    refresh = 0.5 if sys.stderr.isatty() else 30  # seconds; a log needs few lines
    with tqdm(
        total=len(requests), initial=done, unit="sample", mininterval=refresh, smoothing=0.05
    ) as bar:
        for responses in batches:
            partial.add(
                [generation.row(requests[response.place], response) for response in responses]
            )
            tokens += sum(response.tokens for response in responses)
            bar.set_postfix_str(f"{tokens} tokens", refresh=False)
            bar.update(len(responses))


def _local(
    settings: Settings, folder: Path, requests: Sequence[Request], missing: Sequence[int]
) -> Iterator[list[Response]]:
    """Responses of copies of the model on this machine."""
    import torch

    gpus = torch.cuda.device_count()
    vllm_engine.prepare(gpus, settings.data_parallel_size or 1, settings.debug)
    layout = _layout(settings, folder, gpus)
    engine = _engine_settings(settings, folder, requests, layout.tensor_parallel_size)
    jobs = [Job(place, requests[place].prompt.token_ids, requests[place].seed) for place in missing]
    device = f"{layout.tensor_parallel_size} GPU" if gpus else "CPU"
    print(f"loading the model: {layout.copies} x {device}", flush=True)
    return copies.generate(engine, jobs, layout.copies, gpus)


def _layout(settings: Settings, folder: Path, gpus: int) -> Layout:
    """Copies of the model and GPUs per copy, from the flags or from the GPUs' memory."""
    from transformers import AutoConfig

    memory = 0
    if gpus:
        from vllm.platforms import current_platform

        memory = current_platform.get_device_total_memory()
    heads = AutoConfig.from_pretrained(folder).get_text_config().num_attention_heads
    return copies.layout(
        Gpus(gpus, memory),
        ModelSize(model_files.weight_bytes(folder), heads),
        tensor=settings.tensor_parallel_size,
        data=settings.data_parallel_size,
    )


def _engine_settings(
    settings: Settings, folder: Path, requests: Sequence[Request], tensor: int
) -> EngineSettings:
    """The engine's settings, with a context no longer than prompts and responses need."""
    context = vllm_engine.context_length(str(folder), settings.dtype)
    longest = max(requests, key=lambda request: len(request.prompt.token_ids))
    prompt_tokens = len(longest.prompt.token_ids)
    if prompt_tokens >= context:
        which = f"question {longest.question.index} of {longest.question.benchmark}"
        raise ValueError(
            f"--model_path={folder}: takes {context} tokens; the prompt of {which} has "
            f"{prompt_tokens}"
        )
    if prompt_tokens + settings.max_tokens > context:
        print(
            f"--max_tokens={settings.max_tokens}: the model takes {context} tokens with the prompt",
            flush=True,
        )
    return EngineSettings(
        model=str(folder),
        dtype=settings.dtype,
        max_model_len=min(context, prompt_tokens + settings.max_tokens),
        max_num_seqs=settings.max_num_seqs,
        tensor_parallel_size=tensor,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        sampling=Sampling(settings.temperature, settings.top_p, settings.max_tokens),
    )
