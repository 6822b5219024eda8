"""The actor's part of a step alone - log-probs and update - by setting, in one process: no Ray,
queue or vLLM.

    python benchmarks/actor.py MODEL_FOLDER [--stack one_gpu] [--json FILE] [--profile NAME ...]
        [--settings NAME ...]

verl's worker is built from exgrpo's configuration for each setting in turn, and given the same
rows: K responses each of some questions, lengths drawn from a geometric distribution cut off at
--longest. Prints seconds of a pass for old
log-probs and of an update with --minibatches, the loss and the gradient norm of the first, memory,
and verl's mfu; with --profile also which operations the update spends its time in. With --stack cpu
the same runs without a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from common import Figures, at_least, engine_package, machine, parser, refuse, spread, write_json
from hydra import compose, initialize_config_module

from exgrpo.config import kernels
from exgrpo.overrides import override

MODEL, ACTOR = kernels.MODEL, "actor_rollout_ref.actor"
LOOP = [f"{kernels.ATTENTION}=sdpa", f"{MODEL}.use_fused_kernels=False"]
FUSED = f"{MODEL}.use_fused_kernels=True"
BACKEND = f"{MODEL}.fused_kernel_options.impl_backend"
TRITON = [f"{kernels.ATTENTION}=sdpa", FUSED, f"{BACKEND}=triton"]
VARLEN = [f"{kernels.ATTENTION}=torch_varlen", FUSED, f"{BACKEND}=triton"]
SETTINGS = {
    "loop": LOOP,
    "torch": [f"{kernels.ATTENTION}=sdpa", FUSED, f"{BACKEND}=torch"],
    "triton": TRITON,
    "varlen": VARLEN,
    "varlen, 32,768 tokens": [*VARLEN, f"{ACTOR}.ppo_max_token_len_per_gpu=32768"],
    "varlen, all activations": [*VARLEN, f"{MODEL}.enable_gradient_checkpointing=False"],
    "varlen, fused AdamW": [*VARLEN, f"{ACTOR}.optim.override_optimizer_config={{fused: true}}"],
}


def main() -> None:
    """Each setting in turn."""
    cli = parser(__doc__)
    cli.add_argument("model", type=Path)
    cli.add_argument("--stack", choices=("cpu", "one_gpu"), default="one_gpu")
    cli.add_argument("--questions", type=at_least(1), default=16)
    cli.add_argument("--rollouts", type=at_least(1), default=8)
    cli.add_argument("--minibatches", type=at_least(1), default=2)
    cli.add_argument(
        "--mean", type=at_least(1), default=240, help="tokens of a response (default 240)"
    )
    cli.add_argument("--longest", type=at_least(1), default=1024)
    cli.add_argument(
        "--runs", type=at_least(1), default=3, help="of each, after one that is not counted"
    )
    cli.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    cli.add_argument("--profile", nargs="*", choices=list(SETTINGS), default=[])
    cli.add_argument("--overrides", nargs="*", default=[], help="Hydra overrides of every setting")
    options = cli.parse_args()
    if not (options.model / "config.json").is_file():
        refuse(f"actor: {options.model}: no model there")
    facts = machine("verl", "torch", engine_package(options.stack))
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    figures: Figures = {}
    for name in options.settings:
        # a process each: verl changes the model's class for fused kernels, and does not let go of a
        # worker
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as one:
            figures[name] = one.submit(
                measured, options, SETTINGS[name], name in options.profile
            ).result()
        print(
            name,
            {key: value for key, value in figures[name].items() if key != "profile"},
            flush=True,
        )
        if options.json:
            write_json(options.json, figures, facts, options)


def measured(options: argparse.Namespace, setting: list[str], profiled: bool) -> Figures:
    """What one setting takes; an error is a figure, too."""
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }
    os.environ |= {
        "VERL_ENGINE_VENDOR": "exgrpo",
        **({"VERL_PLATFORM": "cpu"} if options.stack == "cpu" else {}),
    }
    try:
        return timed(*built(options, setting), options, profiled)
    except Exception as error:
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def built(options: argparse.Namespace, setting: list[str]) -> tuple[Any, Any]:
    """verl's actor with random data's loss; and its configuration."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    rows = options.questions * options.rollouts
    overrides = [
        f"stack={options.stack}",
        override(f"{MODEL}.path", options.model),
        f"data.max_response_length={options.longest}",
        f"{ACTOR}.ppo_mini_batch_size={rows // options.minibatches // options.rollouts}",
        f"actor_rollout_ref.rollout.n={options.rollouts}",
        f"{ACTOR}.optim.lr=0",
        f"{ACTOR}.optim.total_training_steps=100",
        *options.overrides,
        *setting,
    ]
    with initialize_config_module("exgrpo.config", version_base=None):
        config = compose("exgrpo_trainer", overrides)
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    kernels.write_choices(config)
    actor = config.actor_rollout_ref.actor
    actor.loss_scale_factor = actor.loss_scale_factor
    torch.manual_seed(0)
    worker = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker, config


def rows_of(options: argparse.Namespace, config: Any, words: int) -> Any:
    """Random tokens as verl's queue hands them to the actor: jagged columns, one row a response."""
    from verl.utils import tensordict_utils as tu

    draw = torch.Generator().manual_seed(0)
    columns: dict[str, list[torch.Tensor]] = {}
    for _ in range(options.questions * options.rollouts):
        uniform = float(torch.rand((), generator=draw).clamp(min=1e-6))
        length = min(options.longest, 1 + int(-options.mean * torch.log(torch.tensor(uniform))))
        prompt = torch.randint(0, words, (32,), generator=draw)
        response = torch.randint(0, words, (length,), generator=draw)
        ones = torch.ones(length, dtype=torch.int64)
        values = {
            "prompts": prompt,
            "responses": response,
            "input_ids": torch.cat([prompt, response]),
            "position_ids": torch.arange(32 + length),
            "response_mask": ones,
            "loss_mask": ones,
            "old_log_probs": torch.full((length,), -12.0),
            "advantages": torch.randn((), generator=draw).expand(length).clone(),
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    jagged = {k: torch.nested.as_nested_tensor(v, layout=torch.jagged) for k, v in columns.items()}
    return tu.get_tensordict(
        jagged, {"temperature": float(config.actor_rollout_ref.rollout.temperature)}
    )


def timed(worker: Any, config: Any, options: argparse.Namespace, profiled: bool) -> Figures:
    """Seconds of both passes, memory, loss and gradient norm."""
    from verl.utils import tensordict_utils as tu
    from verl.utils.device import get_torch_device, set_expandable_segments

    words = worker.actor.model_config.hf_config.get_text_config().vocab_size
    rows = options.questions * options.rollouts

    def update() -> Any:
        data = rows_of(options, config, words)
        size = rows // options.minibatches
        told = {"global_batch_size": size, "mini_batch_size": size, "epochs": 1, "seed": 0}
        tu.assign_non_tensor(
            data, **told, dataloader_kwargs={"shuffle": False}, calculate_entropy=False
        )
        return clocked(lambda: worker.update_actor(data))

    def log_probs() -> Any:
        data = rows_of(options, config, words)
        tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False)
        return clocked(lambda: worker.compute_log_prob(data))

    set_expandable_segments(True)  # as verl does before a step's log-probs
    first, output = update()
    metrics = tu.get(output, "metrics")
    of_passes = [log_probs() for _ in range(options.runs + 1)]
    passes = [seconds for seconds, _ in of_passes[1:]]
    warm = [update()[0] for _ in range(options.runs)]
    updates = []
    for _ in range(options.runs):  # in a run the weight sync empties the cache before each step
        get_torch_device().empty_cache()
        updates.append(update())
    last = tu.get(updates[-1][1], "metrics")
    found: Figures = {
        "tokens": sum(len(row) for row in rows_of(options, config, words)["input_ids"].unbind()),
        "first update, s": round(first, 3),
        "update, s": spread([seconds for seconds, _ in updates]),
        "update with the cache kept, s": spread(warm),
        "old log-probs, s": spread(passes),
        "mfu": last.get("mfu"),
        "loss": metrics.get("loss"),
        "gradient norm": metrics.get("grad_norm"),
        "mean log-prob, entropy": [
            float(of_passes[0][1][k].values().mean()) for k in ("log_probs", "entropy")
        ],
        "GiB allocated": last.get("perf/max_memory_allocated_gb"),
        "GiB reserved": last.get("perf/max_memory_reserved_gb"),
    }
    if profiled:
        found["profile"] = profile(update)
    return found


def clocked(work: Any) -> tuple[float, Any]:
    """Seconds until the device is done, and the result."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started, result


def profile(work: Any) -> list[str]:
    """The 60 operations with the most time on the device, and the 30 with the most on the
    processor.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as seen:
        work()
    table = seen.key_averages()
    sorts = [("self_cuda_time_total", 60)] if torch.cuda.is_available() else []
    sorts.append(("self_cpu_time_total", 30))
    return [
        line
        for key, rows in sorts
        for line in table.table(sort_by=key, row_limit=rows).splitlines()
    ]


if __name__ == "__main__":
    main()
