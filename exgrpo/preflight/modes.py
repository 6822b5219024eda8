"""Which of verl's ways to train are supported with replay; docs/modes.md has the whole matrix."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from exgrpo.on_verl import registered

_logger = logging.getLogger(__name__)
OURS = "exgrpo"  # the synchronous trainer and the policy loss
SINGLE_TURN = "single_turn_agent"  # verl's default agent loop
# verl's name of a mode (or exgrpo, the same as sync) -> the name of our trainer for it
TRAINERS = {
    "exgrpo": "exgrpo",
    "sync": "exgrpo",
    "colocate_async": "exgrpo_colocate_async",
    "separate_async": "exgrpo_separate_async",
}

# verl's advantages over the rollouts of one question, from their rewards alone
ESTIMATORS = (
    *("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized"),
    *("reinforce_plus_plus_baseline", "opo", "gpg"),
)
# and those that cannot be used: what a replayed row lacks
UNFIT_ESTIMATORS = {
    "gae": "needs a critic",
    "gdpo": "needs the parts of each reward",
    "optimal_token_baseline": "needs the probabilities of all tokens",
    "reinforce_plus_plus": "has no groups",
    "remax": "needs a baseline of each prompt",
    "tir_optimal_token_baseline": "needs the probabilities of all tokens",
}
# policy losses of fresh tokens: ours, or one that is registered with verl
FRESH_LOSSES = (
    *(OURS, "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg"),
    *("clip_cov", "kl_cov", "geo_mean", "dro", "cispo"),
)
UNFIT_LOSSES = {"bypass_mode": "has no log-probs of the actor, which the pool needs"}

# key, the required value, why; checked with replay only
REQUIRED_BY_REPLAY: list[tuple[str, Any, str]] = [
    ("algorithm.rollout_correction.bypass_mode", False, "the pool needs log-probs of the actor"),
    (
        "actor_rollout_ref.rollout.enable_rollout_routing_replay",
        False,
        "the pool has no record of the experts used",
    ),
    ("distillation.enabled", False, "replayed rows have no teacher"),
    (
        "actor_rollout_ref.actor.checkpoint.async_save",
        False,
        "verl then marks no checkpoint as the latest",
    ),
    (
        "skip.rollout_tq.enable",
        False,
        "rollouts of an earlier run would be assigned to other questions",
    ),
    (
        "data.gen_batch_size",
        1,
        "fresh questions are fetched one by one, so that none is thrown away",
    ),
]


def verify_mode(config: DictConfig) -> None:
    """ValueError, in one line, for a mode that is not supported, with or without replay."""
    mode, trainer = config.trainer.v1.trainer_mode, config.trainer
    if mode not in TRAINERS:
        raise ValueError(f"trainer.v1.trainer_mode={mode}: must be one of {', '.join(TRAINERS)}")
    if trainer.rollout_seeded and TRAINERS[mode] != OURS:
        raise ValueError(
            f"trainer.rollout_seeded=True: must be False with trainer.v1.trainer_mode={mode}, "
            "where a rollout that is interrupted goes on under other weights"
        )
    if (
        trainer.rollout_seeded
        and (loop := config.actor_rollout_ref.rollout.agent.default_agent_loop) != SINGLE_TURN
    ):
        raise ValueError(
            f"actor_rollout_ref.rollout.agent.default_agent_loop={loop}: must be {SINGLE_TURN} "
            "with trainer.rollout_seeded=True, which has seeds for single turns only"
        )
    if mode == "separate_async":
        _separate(config)


def _separate(config: DictConfig) -> None:
    """What verl would find out in its workers, and what does not work in verl 0.9.1."""
    actor_rollout, mode = config.actor_rollout_ref, "with trainer.v1.trainer_mode=separate_async"
    rollout = actor_rollout.rollout
    if rollout.checkpoint_engine.backend == "naive":
        raise ValueError(
            "actor_rollout_ref.rollout.checkpoint_engine.backend=naive: must be nccl or another "
            f"channel between GPUs {mode}; on a CPU: stack=cpu_separate"
        )
    for name in ("nnodes", "n_gpus_per_node"):
        if not rollout[name]:
            raise ValueError(
                f"actor_rollout_ref.rollout.{name}={rollout[name]}: must be 1 or more {mode}"
            )
    if not actor_rollout.hybrid_engine:
        raise ValueError(
            f"actor_rollout_ref.hybrid_engine=False: must be True {mode}: verl 0.9.1 ends with an "
            "error"
        )
    updates, mini_batch = (
        config.trainer.v1.separate_async.parameter_sync_step,
        actor_rollout.actor.ppo_mini_batch_size,
    )
    if config.data.train_batch_size != updates * mini_batch:
        raise ValueError(
            f"data.train_batch_size={config.data.train_batch_size}: must be {updates * mini_batch} "
            f"{mode}: parameter_sync_step={updates} times ppo_mini_batch_size={mini_batch}"
        )


def use_group_filter(config: DictConfig) -> None:
    """Name our replay buffers where verl's filter is on; call it in `open_dict`."""
    groups, sampler = config.algorithm.filter_groups, config.trainer.v1.sampler
    if not groups.enable:
        return
    mode = config.trainer.v1.trainer_mode
    name = "GroupFilterAsync" if mode.endswith("_async") else "GroupFilter"
    sampler.custom_sampler = {"path": "pkg://exgrpo.on_verl.group_filter", "name": name}
    sampler.sampler_kwargs = {  # what verl 0.9.1 gives to its own buffers alone
        "filter_groups_metric": groups.metric,
        "sync_refill_failed_groups": sampler.sync_refill_failed_groups,
        "train_batch_size": config.data.train_batch_size,
        "gen_batch_size": 1,
        "max_inflight_gen_batches": groups.max_inflight_gen_batches,
    }


def verify_replay(config: DictConfig) -> None:
    """ValueError, in one line, for what is not supported together with replay."""
    require(config, REQUIRED_BY_REPLAY)
    loss = "actor_rollout_ref.actor.policy_loss.loss_mode"
    _fits(config, "algorithm.adv_estimator", ESTIMATORS, UNFIT_ESTIMATORS)
    _fits(config, loss, FRESH_LOSSES, UNFIT_LOSSES)
    _correction(config)
    _filter(config)
    _kl_in_reward(config)
    _groups(config)


def require(config: DictConfig, table: Sequence[tuple[str, Any, str]]) -> None:
    """ValueError, in one line, for the first key of the table without its (required value, why)."""
    for key, required, why in table:
        value = OmegaConf.select(config, key)
        if (value or None) != (required or None):
            raise ValueError(
                f"{key}={value}: must be {'null' if required is None else required}; {why}"
            )


def _fits(config: DictConfig, key: str, tested: Sequence[str], unfit: Mapping[str, str]) -> None:
    """A name of verl's that is known to work, or one that somebody has registered with verl."""
    value = OmegaConf.select(config, key)
    if value in tested:
        return
    allowed = f"must be one of {', '.join(tested)}, with replay"
    if value in unfit:
        raise ValueError(f"{key}={value}: {allowed}; {value} {unfit[value]}")
    losses = tested is FRESH_LOSSES
    if value not in (registered.policy_losses() if losses else registered.estimators()):
        raise ValueError(
            f"{key}={value}: {allowed}; or a name that a module of VERL_USE_EXTERNAL_MODULES "
            "registers with verl"
        )
    _logger.warning("exgrpo: %s=%s: registered with verl, untested with replay", key, value)


def _filter(config: DictConfig) -> None:
    """The filter needs a metric, rewards before the batch is taken, and a replay buffer of ours."""
    if not config.algorithm.filter_groups.enable:
        return
    with_filter = "with algorithm.filter_groups.enable=True"
    if not config.algorithm.filter_groups.metric:
        raise ValueError(
            "algorithm.filter_groups.metric=null: must be reward, or a name of what the reward "
            "reports"
        )
    if (path := config.trainer.v1.sampler.custom_sampler.path) is not None:
        raise ValueError(
            f"trainer.v1.sampler.custom_sampler.path={path}: must be null {with_filter}, for which "
            "replay has a buffer of its own"
        )
    reward_model = config.reward.reward_model
    if reward_model.enable and not reward_model.enable_resource_pool:
        raise ValueError(
            "reward.reward_model.enable_resource_pool=False: must be True "
            f"{with_filter}, which reads rewards before the batch is taken"
        )


def _kl_in_reward(config: DictConfig) -> None:
    if config.algorithm.use_kl_in_reward and config.trainer.exp_missing_log_probs == "one":
        raise ValueError(
            "algorithm.use_kl_in_reward=True: must be False with "
            "trainer.exp_missing_log_probs=one; the penalty of a trajectory without log-probs "
            "would be its length times the surprise of the reference policy"
        )


def _groups(config: DictConfig) -> None:
    """Whole past groups leave fresh ones to wait for; rescue needs the failed groups."""
    trainer = config.trainer
    if trainer.exp_unit == "group" and trainer.v1.trainer_mode == "separate_async":
        _fresh_groups(config)
    if trainer.exp_rescue and config.algorithm.filter_groups.enable:
        raise ValueError(
            "trainer.exp_rescue=True: must be False with algorithm.filter_groups.enable=True, "
            "which removes a failed group before a stored success could join it"
        )


def _fresh_groups(config: DictConfig) -> None:
    """Each update needs one; verl's switch waits for up to a batch of them."""
    ratio, settings = config.trainer.experience_ratio, config.trainer.v1.separate_async
    updates, size = settings.parameter_sync_step, config.data.train_batch_size
    if ratio * size > size - updates + 1e-9:
        raise ValueError(
            f"trainer.experience_ratio={ratio}: must leave {updates} of data.train_batch_size="
            f"{size} groups fresh with trainer.exp_unit=group, one for each update of a step"
        )
    ahead = settings.num_warmup_batches
    if settings.hybrid_rollout.enable_switch and ahead < ratio:
        raise ValueError(
            f"trainer.v1.separate_async.num_warmup_batches={ahead}: must be at least "
            f"trainer.experience_ratio={ratio} with trainer.exp_unit=group and "
            "hybrid_rollout.enable_switch=True, which may wait for a whole batch"
        )


def _correction(config: DictConfig) -> None:
    for name in ("rollout_is", "rollout_rs"):
        key = f"algorithm.rollout_correction.{name}"
        value = OmegaConf.select(config, key)
        if value is not None and not config.actor_rollout_ref.rollout.calculate_log_probs:
            raise ValueError(
                f"{key}={value}: needs actor_rollout_ref.rollout.calculate_log_probs=True"
            )
