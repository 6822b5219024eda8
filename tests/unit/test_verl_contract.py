"""The parts of verl 0.9.1 we override or call: an upgrade that changes one fails here and not on a cluster."""

import inspect
import os
import subprocess
import sys

import pytest

SIGNATURES = {
    "_build_replay_buffer": ["self"],
    "_init_dataloader": ["self"],
    "_next_train_batch": ["self", "num_prompts"],
    "_fetch_one_gen_batch": ["self"],
    "_balance_batch": ["self", "batch", "metrics", "logging_prefix", "keep_minibatch"],
    "_compute_old_log_prob": ["self", "batch", "metrics"],
    "_update_actor": ["self", "batch", "metrics"],
    "_save_checkpoint": ["self"],
    "_load_checkpoint": ["self"],
    "on_step_end": ["self"],
}


@pytest.fixture(scope="module")
def trainer():
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    return PPOTrainerSync


@pytest.mark.parametrize("method", SIGNATURES)
def test_overridden_methods_keep_their_parameters(trainer, method):
    assert list(inspect.signature(getattr(trainer, method)).parameters) == SIGNATURES[method]


def test_our_trainer_registers_and_overrides_only_these(trainer):
    from verl.trainer.ppo.v1 import get_trainer_cls

    from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer

    assert get_trainer_cls("exgrpo") is ExperienceMixPPOTrainer
    overridden = {name for name in vars(ExperienceMixPPOTrainer) if callable(getattr(trainer, name, None))}
    assert overridden - {"__doc__", "__module__"} == set(SIGNATURES) - {"_fetch_one_gen_batch"}


def test_a_policy_loss_still_gets_one_channel_a_token():
    from verl.workers.utils import losses

    source = inspect.getsource(losses.ppo_loss)
    assert 'fields.append("rollout_is_weights")' in source and "rollout_is_weights=rollout_is_weights" in source


def fresh(code, **environment):
    """What a fresh process prints."""
    env = {k: v for k, v in os.environ.items() if k != "VERL_PLATFORM"} | environment
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=180)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().splitlines()[-1]


REPORT = """
import importlib.metadata as m, sys
real = m.version
import verl
from verl.plugin.platform.platform_manager import PlatformRegistry
names = PlatformRegistry.registered_names()
print("cpu" in names, m.version is real, "exgrpo.plugin" in sys.modules, "exgrpo.mix_trainer_experience" in sys.modules)
"""


def test_the_entry_point_loads_and_leaves_plain_verl_as_it_was():
    # loaded (verl swallows import errors at DEBUG), and nothing registered, patched or imported by it
    assert fresh(REPORT) == "False True True False"


def test_the_entry_point_brings_the_cpu_platform_where_it_is_asked_for():
    assert fresh(REPORT, VERL_PLATFORM="cpu") == "True False True False"


def test_every_setting_of_the_loss_is_a_key():
    from dataclasses import fields

    from exgrpo.loss_settings import LossSettings
    from exgrpo.on_verl.mix_actor import MixPolicyLossConfig

    keys = {field.name: field.default for field in fields(MixPolicyLossConfig)}
    ours = {field.name: field.default for field in fields(LossSettings) if not field.name.startswith("cliprange_")}
    assert {name: keys.get(name) for name in ours} == ours
