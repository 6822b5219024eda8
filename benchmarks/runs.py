"""The training commands of the benchmarks: the quickstart's settings, or SmolLM2's for a model
folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import refuse

from exgrpo.overrides import override

QUICKSTART = "quickstart"
# as in exp_scripts/run_smollm2_cpu.sh
SMOLLM2 = [
    "data.train_batch_size=8",
    "data.max_prompt_length=96",
    "data.filter_overlong_prompts=True",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.dtype=bfloat16",
    "actor_rollout_ref.rollout.max_model_len=1024",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=256",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
    "trainer.rollout_poll_interval=0.1",
]
# no validation, no checkpoint, no resume
BARE = [
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.val_before_train=False",
    "trainer.resume_mode=disable",
    "trainer.logger=[console,file]",
]


def settings(model: str, folder: Path, stack: str = "cpu") -> list[str]:
    """Hydra overrides of a bare training in ``folder``; its questions are written there."""
    arguments = [*quickstart(folder, stack), *BARE]
    if model == QUICKSTART:
        return arguments
    if not (Path(model) / "config.json").is_file():
        refuse(f"--model={model}: must be {QUICKSTART} or the folder of a model")
    return [*arguments, *SMOLLM2, override("actor_rollout_ref.model.path", Path(model).resolve())]


def quickstart(folder: Path, stack: str) -> list[str]:
    """Hydra overrides of the quickstart in ``folder``, on a CPU or a GPU; its questions are written
    there.
    """
    import run
    import tasks

    tasks.write(folder / "data")
    arguments = run.command(folder, seed=0, done=0, overrides=[])[3:]
    return [f"stack={stack}" if argument == "stack=cpu" else argument for argument in arguments]


def steps(file: Path) -> list[dict[str, Any]]:
    """The metrics of each step of verl's file logger."""
    return [json.loads(line)["data"] for line in file.read_text().splitlines()]
