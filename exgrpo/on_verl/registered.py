"""What is registered with verl: advantage estimators and policy losses, users' own among them."""

from __future__ import annotations


def estimators() -> set[str]:
    """Names of advantages. Imports verl, and with it what VERL_USE_EXTERNAL_MODULES names."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    return set(ADV_ESTIMATOR_REGISTRY)


def policy_losses() -> set[str]:
    """Names of policy losses. Imports verl, and with it what VERL_USE_EXTERNAL_MODULES names."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    return set(POLICY_LOSS_REGISTRY)
