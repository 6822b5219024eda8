"""Names that are registered with verl, users' own among them.

Importing verl imports the modules that VERL_USE_EXTERNAL_MODULES names.
"""

from __future__ import annotations


def estimators() -> set[str]:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    return set(ADV_ESTIMATOR_REGISTRY)


def policy_losses() -> set[str]:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    return set(POLICY_LOSS_REGISTRY)
