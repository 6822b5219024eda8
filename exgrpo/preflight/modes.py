"""Which of verl's ways to train are supported with replay; docs/modes.md has the whole matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

OURS = "exgrpo"  # the synchronous trainer and the policy loss
# verl's name of a mode (or exgrpo, the same as sync) -> the name of our trainer for it
TRAINERS = {"exgrpo": "exgrpo", "sync": "exgrpo", "colocate_async": "exgrpo_colocate_async"}

# verl's advantages over the rollouts of one question, from their rewards alone
ESTIMATORS = (
    *("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized"),
    *("reinforce_plus_plus_baseline", "opo", "gpg"),
)
# policy losses of fresh tokens: ours, or one that is registered with verl
FRESH_LOSSES = (
    *(OURS, "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro"),
    "cispo",
)

# key, the required value, why; checked with replay only
_REQUIRED_BY_REPLAY: list[tuple[str, Any, str]] = [
    ("algorithm.filter_groups.enable", False, "the pool must see every group, also those that are filtered out"),
    ("algorithm.rollout_correction.bypass_mode", False, "the pool needs log-probs of the actor"),
    ("actor_rollout_ref.rollout.multi_turn.enable", False, "a trajectory is one response"),
    ("actor_rollout_ref.rollout.enable_rollout_routing_replay", False, "the pool has no record of the experts used"),
    ("distillation.enabled", False, "replayed rows have no teacher"),
    ("actor_rollout_ref.actor.checkpoint.async_save", False, "verl then marks no checkpoint as the latest"),
    ("skip.rollout_tq.enable", False, "rollouts of an earlier run would be assigned to other questions"),
    ("data.gen_batch_size", 1, "fresh questions are fetched one by one, so that none is thrown away"),
]


def verify_mode(trainer: DictConfig) -> None:
    """ValueError, in one line, for a mode of verl's trainer that is not supported, with or without replay."""
    mode = trainer.v1.trainer_mode
    if mode not in TRAINERS:
        raise ValueError(f"trainer.v1.trainer_mode={mode}: must be one of {', '.join(TRAINERS)}")
    if trainer.rollout_seeded and TRAINERS[mode] != OURS:
        raise ValueError(
            f"trainer.rollout_seeded=True: must be False with trainer.v1.trainer_mode={mode}, where a rollout that is "
            "interrupted goes on under other weights"
        )


def verify_replay(config: DictConfig) -> None:
    """ValueError, in one line, for what is not supported together with replay."""
    require(config, _REQUIRED_BY_REPLAY)
    _one_of(config, "algorithm.adv_estimator", ESTIMATORS)
    _one_of(config, "actor_rollout_ref.actor.policy_loss.loss_mode", FRESH_LOSSES)
    _correction(config)


def require(config: DictConfig, table: Sequence[tuple[str, Any, str]]) -> None:
    """ValueError, in one line, for the first key of the table without its (required value, why)."""
    for key, required, why in table:
        value = OmegaConf.select(config, key)
        if (value or None) != (required or None):
            raise ValueError(f"{key}={value}: must be {'null' if required is None else required}; {why}")


def _one_of(config: DictConfig, key: str, values: Sequence[str]) -> None:
    value = OmegaConf.select(config, key)
    if value not in values:
        raise ValueError(f"{key}={value}: must be one of {', '.join(values)}, with replay")


def _correction(config: DictConfig) -> None:
    for name in ("rollout_is", "rollout_rs"):
        key = f"algorithm.rollout_correction.{name}"
        value = OmegaConf.select(config, key)
        if value is not None and not config.actor_rollout_ref.rollout.calculate_log_probs:
            raise ValueError(f"{key}={value}: needs actor_rollout_ref.rollout.calculate_log_probs=True")
