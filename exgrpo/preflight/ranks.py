"""What has to divide by the number of GPUs; verl notices after the first step."""

from __future__ import annotations

import math
from pathlib import Path

from omegaconf import DictConfig

from exgrpo.on_verl.checkpoints import POOL


def verify(config: DictConfig, resumed: Path | None) -> None:
    """Raise ValueError at the first number that does not fit.

    Args:
        resumed: the checkpoint that the run would resume from, if it is on this node's disk.
    """
    trainer = config.trainer
    gpus = trainer.nnodes * trainer.n_gpus_per_node
    given = f"trainer.nnodes={trainer.nnodes} trainer.n_gpus_per_node={trainer.n_gpus_per_node}"
    _same_as_saved(gpus, given, resumed)
    _mini_batch(config.actor_rollout_ref, gpus, given)
    _rollout(
        config.actor_rollout_ref.rollout,
        gpus,
        given,
        config.trainer.v1.trainer_mode == "separate_async",
    )


def _same_as_saved(gpus: int, given: str, resumed: Path | None) -> None:
    """Checked if the checkpoint's FSDP shards, one file per rank, are here."""
    files = [] if resumed is None else (resumed / "actor").glob("model_world_size_*_rank_*.pt")
    saved = {int(path.name.split("_")[3]) for path in files}
    if resumed is not None and saved and gpus not in saved:
        raise ValueError(
            f"{given}: {resumed} was saved on {max(saved)} GPUs, and verl resumes on the same "
            "number only; for another number, start a new run with the weights that python -m "
            f"verl.model_merger makes and trainer.experience_import={resumed / POOL}"
        )


def _mini_batch(actor_rollout_ref: DictConfig, gpus: int, given: str) -> None:
    """Each data-parallel rank has the same number of a mini-batch's rows."""
    actor, rollout_n = actor_rollout_ref.actor, actor_rollout_ref.rollout.n
    key = "ulysses_sequence_parallel_size"  # verl has it in two places
    ulysses = max(actor[key], actor.fsdp_config[key])
    _multiple(gpus, ulysses, given, f"actor_rollout_ref.actor.{key}={ulysses}")
    rows = actor.ppo_mini_batch_size * rollout_n
    if rows % (gpus // ulysses):
        raise ValueError(
            f"actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size}: {rows} rows "
            f"with rollout.n={rollout_n}; must be a multiple of the {gpus // ulysses} "
            f"data-parallel ranks of {given}"
        )


def _rollout(rollout: DictConfig, gpus: int, given: str, separate: bool) -> None:
    """Each replica of the rollout server has the same number of GPUs."""
    if separate:
        gpus = rollout.nnodes * rollout.n_gpus_per_node
        given = " ".join(
            f"actor_rollout_ref.rollout.{key}={rollout[key]}"
            for key in ("nnodes", "n_gpus_per_node")
        )
    keys = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    said = " ".join(
        f"actor_rollout_ref.rollout.{key}={rollout[key]}" for key in keys if rollout[key] != 1
    )
    _multiple(gpus, math.prod(rollout[key] for key in keys), given, said)


def _multiple(gpus: int, size: int, given: str, said: str) -> None:
    if gpus % size:
        raise ValueError(f"{given}: must be a multiple of {size} GPUs, by {said}")
