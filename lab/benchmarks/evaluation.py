"""eval/generate_vllm.py against vLLM's own LLM.generate on the same prompts, seeds and settings: tokens per second.

    python lab/benchmarks/evaluation.py [--model DIR] [--questions 128] [--samples 8] [--runs 3] [--json FILE]
    python lab/benchmarks/evaluation.py --stack one_gpu          on GPUs, not on the CPU

Each run is a new process of one and then of the other, in alternating order; timing begins when the model is loaded.
generate_vllm.py also writes every finished sample to disk; LLM.generate does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import benchmark_folders  # noqa: F401
from common import ROOT, STACKS, Figures, at_least, engine_package, machine, parser, ratios, refuse, report, spread


def main() -> None:
    """Run both alternately."""
    cli = parser(__doc__)
    cli.add_argument("--stack", choices=STACKS, default="cpu")
    cli.add_argument("--model", type=Path, default=ROOT / "exp_scripts" / "quickstart" / "base_model")
    cli.add_argument("--questions", type=at_least(1), default=128)
    cli.add_argument("--samples", type=at_least(1), default=8, help="of each question")
    cli.add_argument("--max_tokens", type=at_least(1), default=48)
    cli.add_argument("--runs", type=at_least(1), default=3)
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "bench-evaluation")
    options = cli.parse_args()
    if not (options.model / "config.json").is_file():
        refuse(f"--model={options.model}: must be the folder of a model")
    import tasks

    facts = machine("torch", engine_package(options.stack))
    output = options.output.resolve()
    tasks.write(output)
    ours(options, output)  # writes the prompts for LLM.generate; not counted
    speeds: dict[str, list[float]] = {"generate_vllm.py": [], "LLM.generate": []}
    for run in range(options.runs):
        names = list(speeds)[::-1] if run % 2 else list(speeds)
        for name in names:
            measure = ours if name == "generate_vllm.py" else bare
            speeds[name].append(measure(options, output))
    figures: Figures = {f"{name}, tokens a second": spread(values) for name, values in speeds.items()}
    figures["generate_vllm.py / LLM.generate"] = ratios(*speeds.values())
    report(f"evaluation, {options.questions} questions x {options.samples} samples", figures, facts, options)


def ours(options: Any, output: Path) -> float:
    """Tokens per second of the evaluation, as it reports them."""
    arguments = {
        "model_path": options.model,
        "input_file": output / "test.parquet",
        "output_file": output / "run.jsonl",
        "limit": options.questions,
        "n": options.samples,
        "max_tokens": options.max_tokens,
    }
    flags = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, str(ROOT / "eval" / "generate_vllm.py"), *flags, "--skip_scoring", "True", "--restart"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    run = json.loads((output / "run.run.json").read_text())
    return run["generated_tokens"] / run["seconds"]


def bare(options: Any, output: Path) -> float:
    """Tokens per second of LLM.generate, in its own process."""
    rows = [json.loads(line) for line in (output / "run.jsonl").read_text().splitlines()]
    settings = json.loads((output / "run.run.json").read_text())["settings"]
    jobs = [(row["prompt"], row["seed"]) for row in rows]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_generate, options.stack, str(options.model), settings, jobs).result()


def _generate(stack: str, model: str, settings: dict[str, Any], jobs: list[tuple[str, int]]) -> float:
    from exgrpo_eval.generate import vllm_engine

    vllm_engine.prepare(0 if stack == "cpu" else 1, 1, False)
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = [{"prompt_token_ids": tokenizer(text, add_special_tokens=False).input_ids} for text, _ in jobs]
    length = max(len(prompt["prompt_token_ids"]) for prompt in prompts) + settings["max_tokens"]
    machine: dict[str, Any] = {"gpu_memory_utilization": settings["gpu_memory_utilization"]}
    if stack == "cpu":
        machine = {
            "enforce_eager": True,
            "distributed_executor_backend": "uni",
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": 4096,
        }
    llm = LLM(model=model, dtype=settings["dtype"], max_model_len=length, enable_prefix_caching=False, **machine)
    sampling = {name: settings[name] for name in ("temperature", "top_p", "max_tokens")}
    params = [SamplingParams(seed=seed, **sampling) for _, seed in jobs]
    started = time.monotonic()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.monotonic() - started
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


if __name__ == "__main__":
    main()
