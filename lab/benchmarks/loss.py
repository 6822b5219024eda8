"""The mixed loss of ExGRPO against verl's own vanilla loss on the same tensors: time and peak memory, both directions.

    python lab/benchmarks/loss.py [--rows 64] [--tokens 512 2048 8192] [--runs 25] [--threads 1]

The loss is measured as verl calls it (mix_actor, including aggregation and metrics): in the mixed phase, with one row
in sixteen replayed, and before it. Time: all alternately in one process. Memory: torch's profiler records allocations
and frees of the CPU allocator; the figure is the peak beyond the input tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import benchmark_folders  # noqa: F401
from common import Figures, at_least, in_turn, machine, parser, ratios, report, spread

LOSSES = ("mixed", "before mixing", "vanilla")


def main() -> None:
    """Measure each length."""
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=at_least(16), default=64)
    arguments.add_argument("--tokens", type=at_least(2), nargs="+", default=[512, 2048, 8192], help="of a response")
    arguments.add_argument("--runs", type=at_least(1), default=25)
    arguments.add_argument("--threads", type=at_least(1), default=1, help="of torch; 1: no waiting for other cores")
    options = arguments.parse_args()
    os.environ.setdefault("VERL_PLATFORM", "cpu")
    import torch

    torch.set_num_threads(options.threads)
    facts = machine("torch", "verl")
    figures: Figures = {}
    for tokens in options.tokens:
        figures |= measure(options.rows, tokens, options.runs)
    report(
        "mixed_policy_loss against verl's compute_policy_loss_vanilla, forward and backward", figures, facts, options
    )


def measure(rows: int, tokens: int, runs: int) -> Figures:
    """name -> figure, for one shape."""
    works = {name: work(name, rows, tokens) for name in LOSSES}
    seconds = in_turn(works, runs)
    peaks = {name: peak_bytes(works[name]) / 1e6 for name in LOSSES}
    shape = f"[{rows}, {tokens}] "
    return {
        **{f"{shape}{name}, ms": spread([1000 * second for second in seconds[name]]) for name in LOSSES},
        f"{shape}mixed / vanilla, time": ratios(seconds["mixed"], seconds["vanilla"]),
        f"{shape}before mixing / vanilla, time": ratios(seconds["before mixing"], seconds["vanilla"]),
        **{f"{shape}{name}, peak MB": peaks[name] for name in LOSSES},
        f"{shape}mixed / vanilla, peak memory": peaks["mixed"] / peaks["vanilla"],
    }


def work(name: str, rows: int, tokens: int) -> Callable[[], None]:
    """One forward and one backward pass of a loss."""
    import torch
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import ActorConfig

    from exgrpo.on_verl.correct import FRESH, ON_POLICY, REPLAYED
    from exgrpo.on_verl.mix_actor import MixPolicyLossConfig, compute_policy_loss_exgrpo

    generator = torch.Generator().manual_seed(0)
    past = -torch.empty(rows, tokens).exponential_(1.0, generator=generator)
    drift = 0.1 * torch.randn(rows, tokens, generator=generator)
    now = (past + drift).clamp_(max=0).requires_grad_()
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, tokens).contiguous()
    lengths = torch.randint(tokens // 2, tokens + 1, (rows, 1), generator=generator)
    mask = (torch.arange(tokens) < lengths).to(torch.int64)
    phase = torch.full((rows, tokens), FRESH if name == "mixed" else ON_POLICY)
    if name == "mixed":
        phase[::16] = REPLAYED
    config = ActorConfig(
        strategy="fsdp2",
        rollout_n=8,
        ppo_micro_batch_size_per_gpu=8,
        ppo_mini_batch_size=64,
        policy_loss=MixPolicyLossConfig(),
    )
    compute: Any = compute_policy_loss_vanilla if name == "vanilla" else compute_policy_loss_exgrpo
    weights = None if name == "vanilla" else phase  # vanilla would multiply the losses by them

    def once() -> None:
        now.grad = None
        loss, _ = compute(past, now, advantages, mask, "seq-mean-token-sum-norm", config, weights)
        loss.backward()

    return once


def peak_bytes(once: Callable[[], None]) -> int:
    """Peak memory of ``once`` beyond what was allocated before."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=False) as profiled:
        once()
    held = peak = 0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


if __name__ == "__main__":
    main()
