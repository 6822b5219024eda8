"""Sizes that have to fit each other."""

from __future__ import annotations

from omegaconf import DictConfig


def verify(config: DictConfig) -> None:
    """Raise ValueError at the first size that does not fit."""
    _samples(config.data)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    key = "ulysses_sequence_parallel_size"
    ranks = max(actor[key], actor.fsdp_config[key])
    passes = [
        ("actor.ppo_max_token_len_per_gpu", actor.use_dynamic_bsz),
        ("rollout.log_prob_max_token_len_per_gpu", rollout.log_prob_use_dynamic_bsz),
    ]
    for name, dynamic in passes:
        group, _, key = name.partition(".")
        if dynamic:
            _tokens(
                config, f"actor_rollout_ref.{name}", config.actor_rollout_ref[group][key], ranks
            )


def _samples(data: DictConfig) -> None:
    limit = data.train_max_samples
    if 0 < limit < data.train_batch_size:
        raise ValueError(
            f"data.train_max_samples={limit}: must be at least "
            f"data.train_batch_size={data.train_batch_size}, or -1 for all"
        )


def _tokens(config: DictConfig, key: str, tokens: int, ranks: int) -> None:
    """verl ends at the first sequence that is longer than a micro-batch may be, hours later."""
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    needed = -(-(prompt + response) // ranks)
    if tokens < needed:
        raise ValueError(
            f"{key}={tokens}: must be at least {needed}, for data.max_prompt_length={prompt} + "
            f"data.max_response_length={response}" + (f" over {ranks} ranks" if ranks > 1 else "")
        )
