"""Numbers that have to fit each other: questions, tokens, groups, GPUs. verl notices much later,
some of them after the first step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from exgrpo.on_verl.checkpoints import POOL

_ULYSSES = "ulysses_sequence_parallel_size"  # verl has it in two places


def verify(config: DictConfig, resumed: Path | None) -> None:
    """Raise ValueError, in one line, at the first number that does not fit.

    Args:
        resumed: the checkpoint that the run would resume from, if it is on this node's disk.
    """
    trainer, actor_rollout = config.trainer, config.actor_rollout_ref
    gpus = trainer.nnodes * trainer.n_gpus_per_node
    given = f"trainer.nnodes={trainer.nnodes} trainer.n_gpus_per_node={trainer.n_gpus_per_node}"
    actor = actor_rollout.actor
    ulysses = max(actor[_ULYSSES], actor.fsdp_config[_ULYSSES])
    separate = trainer.v1.trainer_mode == "separate_async"
    wrong = itertools.chain(
        _questions(trainer, config.data),
        _queue(config),
        _tokens(config, ulysses),
        _shards(actor.fsdp_config.fsdp_size, gpus, given),
        _same_as_saved(gpus, given, resumed),
        _mini_batch(actor_rollout, gpus, ulysses, given),
        _rollout(actor_rollout.rollout, gpus, given, separate),
        _updates(config) if separate else _whole_mini_batches(config),
    )
    if (first := next(wrong, None)) is not None:
        raise ValueError(first)


def _questions(trainer: DictConfig, data: DictConfig) -> Iterator[str]:
    limit, size, ratio = data.train_max_samples, data.train_batch_size, trainer.experience_ratio
    if 0 < limit < size:
        allowed = f"must be at least data.train_batch_size={size}, or -1 for all"
        yield f"data.train_max_samples={limit}: {allowed}"
    if trainer.experience and 0 < ratio * size < 1:
        allowed = f"must be 0, or at least 1 question of data.train_batch_size={size}"
        yield f"trainer.experience_ratio={ratio}: {allowed}"


def _queue(config: DictConfig) -> Iterator[str]:
    """The queue holds a step's rollouts, a row each."""
    simple, size = config.transfer_queue.backend.SimpleStorage, config.data.train_batch_size
    rollout_n, capacity = config.actor_rollout_ref.rollout.n, simple.total_storage_size
    if capacity is not None and size * rollout_n > capacity:
        yield (
            f"transfer_queue.backend.SimpleStorage.total_storage_size={capacity}: must be at least "
            f"data.train_batch_size={size} * actor_rollout_ref.rollout.n={rollout_n}, or null"
        )


def _tokens(config: DictConfig, ranks: int) -> Iterator[str]:
    """verl ends at the first sequence that is longer than a micro-batch may be, hours later."""
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    needed = -(-(prompt + response) // ranks)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    dynamic = {
        "actor.ppo_max_token_len_per_gpu": actor.use_dynamic_bsz,
        "rollout.log_prob_max_token_len_per_gpu": rollout.log_prob_use_dynamic_bsz,
    }
    for name, is_bound in dynamic.items():
        group, _, key = name.partition(".")
        tokens = config.actor_rollout_ref[group][key]
        if is_bound and tokens < needed:
            lengths = f"data.max_prompt_length={prompt} + data.max_response_length={response}"
            over = f" over {ranks} ranks" if ranks > 1 else ""
            given = f"actor_rollout_ref.{name}={tokens}"
            yield f"{given}: must be at least {needed}, for {lengths}{over}"


def _same_as_saved(gpus: int, given: str, resumed: Path | None) -> Iterator[str]:
    """The number of GPUs must be that of the checkpoint, whose shards, if here, tell it."""
    files = [] if resumed is None else (resumed / "actor").glob("model_world_size_*_rank_*.pt")
    saved = {int(path.name.split("_")[3]) for path in files}
    if resumed is not None and saved and gpus not in saved:
        yield (
            f"{given}: {resumed} was saved on {max(saved)} GPUs, and verl resumes on the same "
            "number only; for another number, start a new run with the weights that "
            f"python -m verl.model_merger makes and trainer.experience_import={resumed / POOL}"
        )


def _mini_batch(
    actor_rollout_ref: DictConfig, gpus: int, ulysses: int, given: str
) -> Iterator[str]:
    """Each data-parallel rank has the same number of a mini-batch's rows."""
    size, rollout_n = actor_rollout_ref.actor.ppo_mini_batch_size, actor_rollout_ref.rollout.n
    if gpus % ulysses:
        yield _multiple(ulysses, given, f"actor_rollout_ref.actor.{_ULYSSES}={ulysses}")
    elif size * rollout_n % (gpus // ulysses):
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size={size}: {size * rollout_n} rows with "
            f"rollout.n={rollout_n}; must be a multiple of the {gpus // ulysses} data-parallel "
            f"ranks of {given}"
        )


def _shards(size: int, gpus: int, given: str) -> Iterator[str]:
    """Groups of `size` GPUs hold the model's shards, -1: all of them."""
    if 0 < size < gpus and gpus % size:
        key = f"actor_rollout_ref.actor.fsdp_config.fsdp_size={size}"
        yield f"{key}: must divide the {gpus} GPUs of {given}, or be -1 for all"


def _whole_mini_batches(config: DictConfig) -> Iterator[str]:
    """verl fills the last mini-batch up with empty rows, by which its loss is divided, too."""
    size, batch = config.actor_rollout_ref.actor.ppo_mini_batch_size, config.data.train_batch_size
    if batch % size:
        given = f"actor_rollout_ref.actor.ppo_mini_batch_size={size}"
        yield f"{given}: must divide data.train_batch_size={batch}, or its last update is weaker"


def _rollout(rollout: DictConfig, gpus: int, given: str, separate: bool) -> Iterator[str]:
    """Each replica of the rollout server has the same number of GPUs."""

    def settings(*keys: str) -> str:
        return " ".join(f"actor_rollout_ref.rollout.{key}={rollout[key]}" for key in keys)

    if separate:
        gpus = rollout.nnodes * rollout.n_gpus_per_node
        given = settings("nnodes", "n_gpus_per_node")
    keys = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    size = math.prod(rollout[key] for key in keys)
    if gpus % size:
        yield _multiple(size, given, settings(*(key for key in keys if rollout[key] != 1)))
    tokens, rows = rollout.max_num_batched_tokens, rollout.max_num_seqs
    if tokens < rows:
        yield (
            f"actor_rollout_ref.rollout.max_num_batched_tokens={tokens}: must be at least "
            f"actor_rollout_ref.rollout.max_num_seqs={rows}, a token of each"
        )


def _multiple(size: int, given: str, why: str) -> str:
    return f"{given}: must be a multiple of {size} GPUs, by {why}"


def _updates(config: DictConfig) -> Iterator[str]:
    """In separate_async each update of a step needs a mini-batch, with past groups a fresh group;
    verl's switch waits for up to a batch of them.
    """
    settings, trainer = config.trainer.v1.separate_async, config.trainer
    updates, size = settings.parameter_sync_step, config.data.train_batch_size
    mini_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if size != updates * mini_batch:
        yield (
            f"data.train_batch_size={size}: must be {updates * mini_batch} with "
            f"trainer.v1.trainer_mode=separate_async: parameter_sync_step={updates} times "
            f"ppo_mini_batch_size={mini_batch}"
        )
    what = "exp_place=beside" if trainer.exp_place == "beside" else "exp_unit=group"
    taken = trainer.exp_unit == "group" and trainer.exp_place == "share"
    if not (trainer.experience and (taken or trainer.exp_place == "beside")):
        return
    ratio, ahead = trainer.experience_ratio, settings.num_warmup_batches
    if ratio * size > size - updates + 1e-9:
        yield (
            f"trainer.experience_ratio={ratio}: must leave {updates} of data.train_batch_size="
            f"{size} groups fresh with trainer.{what}, one for each update of a step"
        )
    if settings.hybrid_rollout.enable_switch and ahead < ratio:
        yield (
            f"trainer.v1.separate_async.num_warmup_batches={ahead}: must be at least "
            f"trainer.experience_ratio={ratio} with trainer.{what} and "
            "hybrid_rollout.enable_switch=True, which may wait for a whole batch"
        )
