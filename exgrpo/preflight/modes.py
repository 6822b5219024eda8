"""verl's trainers, estimators and losses that work with replay (docs/modes.md); what other settings
must be with it is in values.yaml.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from omegaconf import DictConfig, OmegaConf

from exgrpo.on_verl import registered

_logger = logging.getLogger(__name__)
OURS = "exgrpo"  # the synchronous trainer and the policy loss
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


def use_group_filter(config: DictConfig) -> None:
    """Name our replay buffers where verl's filter is on; call it in `open_dict`."""
    groups, sampler = config.algorithm.filter_groups, config.trainer.v1.sampler
    if groups is None or not groups.enable:
        return
    mode = config.trainer.v1.trainer_mode
    name = "GroupFilterAsync" if mode.endswith("_async") else "GroupFilter"
    sampler.custom_sampler = {"path": "pkg://exgrpo.on_verl.group_filter", "name": name}
    sampler.sampler_kwargs = {  # what verl gives to its own buffers alone
        "filter_groups_metric": groups.metric,
        "sync_refill_failed_groups": sampler.sync_refill_failed_groups,
        "train_batch_size": config.data.train_batch_size,
        "gen_batch_size": 1,
        "max_inflight_gen_batches": groups.max_inflight_gen_batches,
    }


def watch_rewards(config: DictConfig) -> None:
    """Name our part of verl's reward managers (exgrpo.on_verl.watched_rewards) in their place.

    Not of one of the user's own, nor of a reward model's.
    """
    manager = config.reward.reward_manager
    if manager.source == "register" and not config.reward.reward_model.enable:
        manager.source, manager.module.path = "importlib", "pkg://exgrpo.on_verl.watched_rewards"


def verify_names(config: DictConfig) -> None:
    """ValueError, in one line, for an estimator or a loss that does not work with replay."""
    loss = "actor_rollout_ref.actor.policy_loss.loss_mode"
    _fits(config, "algorithm.adv_estimator", ESTIMATORS, UNFIT_ESTIMATORS)
    _fits(config, loss, FRESH_LOSSES, UNFIT_LOSSES)


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
