"""What equal_runs.py compares: python tests/equal_parts.py PART CHECKOUT INPUTS OUTPUT.

A part is a function that returns name -> JSON value, from public names alone; floats are written
to the last bit. It runs in a process that imports CHECKOUT's code, which may be laid out otherwise.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import equal_world

# verl's metrics that measure a time, and one that follows from them
TIMES = ("timing", "perf/", "seconds", "throughput", "training/rollout_actor_probs")
TRAINER_STEPS = (7, 12)  # it ends after the first number, and goes on to the second
TRAINER = [
    "trainer.rollout_seeded=True",
    "trainer.save_freq=4",
    "trainer.test_freq=-1",
    "trainer.val_before_train=False",
    # vLLM adds up in another order when other requests share its batch
    "actor_rollout_ref.rollout.max_num_seqs=1",
    "actor_rollout_ref.rollout.enable_prefix_caching=False",
    "data.train_batch_size=8",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
]
RESHAPES = ("no_reshape", "logp", "p_logp", "square_root", "pow", "p_div_p_0.5")
LOSSES = [
    {},
    *({"off_policy_reshape": name, "off_policy_reshape_weight": 0.3} for name in RESHAPES),
    *({"on_policy_reshape": name, "on_policy_reshape_pow_exp": 0.7} for name in RESHAPES[2:6:2]),
    {"on_policy_reshape": "p_div_p_0.1"},
    {"loss_remove_clip": False},
    {"loss_remove_clip": False, "cliprange_low": 0.1, "clip_upper_bound": 1.5},
    {"off_policy_max_clip": 0.8, "off_policy_min_clip": 0.5},
    {"all_max_clip": 0.7},
    {"off_policy_loss": "clip"},
    {"off_policy_loss": "topr"},
]


def world(root, inputs):
    """Ten settings of replay in a simulated world."""
    return equal_world.record()


def losses(root, inputs):
    """Token losses, metrics and gradients of 16 variants in two dtypes; the loss of a buffer."""
    import torch

    from exgrpo import compute_grpo_loss
    from exgrpo.loss_settings import LossSettings
    from exgrpo.mix_core_alg import mixed_token_losses

    torch.set_num_threads(1)
    found = {}
    for dtype in (torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(1)
        probabilities = torch.rand(8, 12, generator=generator, dtype=dtype)
        drift = torch.randn(8, 12, generator=generator, dtype=dtype)
        rewards = (torch.arange(8) % 3 == 0).to(dtype)
        rows = {
            "old_log_prob": probabilities.log() - 0.6 * drift,
            "is_replayed": torch.arange(8) % 4 == 3,
            "response_mask": torch.arange(12) < torch.arange(5, 13)[:, None],
        }
        for number, variant in enumerate(LOSSES):
            settings = LossSettings(**variant)
            log_prob = probabilities.log().requires_grad_()
            given = {**rows, "log_prob": log_prob, "settings": settings}
            token_losses, metrics = mixed_token_losses(
                **given, advantages=(rewards - 0.4)[:, None].expand(8, 12)
            )
            token_losses.square().sum().backward()
            name = f"{number} {variant or 'as published'} {dtype}"
            found[f"{name}: losses"] = token_losses.tolist()
            found[f"{name}: gradient"] = log_prob.grad.tolist()
            found[f"{name}: metrics"] = {key: each.item() for key, each in metrics.items()}
            log_prob = probabilities.log().requires_grad_()
            batch = {**rows, "log_prob": log_prob, "group": [0] * 4 + [1] * 4}
            loss = compute_grpo_loss(batch, rewards, settings=settings, use_std=bool(number % 2))
            loss.backward()
            found[f"{name}: loss of a buffer"] = [loss.item(), log_prob.grad.tolist()]
    return found


def refusals(root, inputs):
    """The lines for wrong values."""
    import equal_refusals

    sys.path.insert(0, str(root / "tests"))  # whose `composed` it is to be

    return equal_refusals.record(root, inputs)


def trainer(root, inputs):
    """Metrics and the saved pool of 12 steps of the quickstart, stopped and resumed on the way."""
    environment = {"RAY_raylet_start_wait_time_s": "150"} | os.environ
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "run")
        for steps in TRAINER_STEPS:
            command = [sys.executable, root / "exp_scripts/quickstart/run.py", "--output", output]
            given = [*TRAINER, f"trainer.total_training_steps={steps}"]
            if subprocess.run([*command, *given], cwd=folder, env=environment).returncode:
                sys.exit(f"{command[1]} failed")
        found = {}
        for path in sorted(output.glob("metrics-*.jsonl")):
            for line in map(json.loads, path.read_text().splitlines()):
                for name, value in line["data"].items():
                    if not any(word in name for word in TIMES):
                        found[f"{path.stem} step {line['step']:2} {name}"] = value
        last = output / "checkpoints" / f"global_step_{TRAINER_STEPS[-1]}"
        return found | equal_world.saved(last / "experience")


def configurations(root, inputs):
    """What ``--cfg job`` prints for run_exgrpo.sh, run_on_policy.sh, recipes, the quickstart."""
    import run

    options, scripts = ["--cfg", "job", "--resolve"], root / "exp_scripts"
    module, *given = run.command(Path("/run"), 0, 0, [])[2:]
    called = {"quickstart": [module, *options, *given]}
    with tempfile.TemporaryDirectory() as folder:
        says = Path(folder, "says")
        says.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        says.chmod(0o755)
        environment = {"PATH": os.environ["PATH"], "PYTHON": str(says)}
        names = ["run_exgrpo.sh", "run_on_policy.sh"]
        for script in [*map(scripts.joinpath, names), *sorted((scripts / "recipes").glob("*.sh"))]:
            command = ["bash", script, *options[:2]]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
            called[script.stem] = done.stdout.splitlines()[1:] or [done.stderr]
    importlib.import_module("exgrpo.main_mix_ppo")
    # a process each: Hydra keeps what it has composed
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        printed = zip(called, pool.map(_print, called.values(), chunksize=1), strict=True)
        return {
            f"{name}: {key}": value.replace(str(root), "CHECKOUT")
            for name, config in printed
            for key, value in config.items()
        }


def _print(arguments):
    from omegaconf import OmegaConf

    sys.argv = arguments
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        importlib.import_module(arguments[0]).main()
    return dict(_leaves(OmegaConf.to_container(OmegaConf.create(printed.getvalue()))))


def _leaves(config, before=""):
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", repr(value)


PARTS = (world, losses, refusals, trainer, configurations)


def main():
    name, checkout, inputs, output = sys.argv[1:]
    root = Path(checkout)
    import exgrpo

    assert Path(exgrpo.__file__).parents[1] == root, f"{exgrpo.__file__} is not of {root}"
    os.environ.pop("VERL_PLATFORM", None)
    found = {part.__name__: part for part in PARTS}[name](root, Path(inputs))
    Path(output).write_text(json.dumps(found, sort_keys=True, default=str))


if __name__ == "__main__":
    main()
