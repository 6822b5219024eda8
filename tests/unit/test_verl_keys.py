"""The keys of verl 0.9.1's configuration that we set, read or check: one that is gone would be set
or asked in vain.
"""

import ast
import importlib
import inspect
import re
from dataclasses import fields

import pytest
from composed import job
from hydra import compose, initialize_config_module
from hydra.utils import get_class
from omegaconf import OmegaConf
from source_code import PACKAGE, dotted, shown, tree

from exgrpo.loss_settings import LossSettings
from exgrpo.preflight.unknown_keys import GONE

CONFIG = PACKAGE / "config"
OURS = (
    "trainer.exp",  # exp_..., experience_...
    "trainer.max_optim_to_keep",
    "trainer.rollout_seeded",
    "trainer.rollout_poll_interval",
    "trainer.rollout_patience_s",
    "trainer.rollout_ledger_bytes",
    "actor_rollout_ref.actor.policy_loss.entropy_agg",
    "actor_rollout_ref.actor.optim.skip_grad_bound",
    "hydra.",
    "defaults",
)
# Nodes below which verl takes any key and hands it on; what is asked is that the node is there.
OPEN = (
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.rollout.engine_kwargs.vllm",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "reward.custom_reward_function.reward_kwargs",
    "ray_kwargs.ray_init",
)
# Read by way of a variable for their node, where no whole name stands in the source.
ROLLOUT, ACTOR = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."
READ = [
    *(
        ROLLOUT + name
        for name in ("n", "seed", "temperature", "calculate_log_probs", "log_prob_use_dynamic_bsz")
    ),
    *(ROLLOUT + name for name in ("log_prob_micro_batch_size_per_gpu", "agent.default_agent_loop")),
    *(ROLLOUT + name for name in ("agent.agent_loop_config_path", "multi_turn.enable")),
    *(
        ACTOR + name
        for name in ("clip_ratio_low", "clip_ratio_high", "entropy_coeff", "ppo_mini_batch_size")
    ),
    *(
        ACTOR + name
        for name in ("loss_agg_mode", "checkpoint.load_contents", "ulysses_sequence_parallel_size")
    ),
    ACTOR + "fsdp_config.ulysses_sequence_parallel_size",
    "data.image_key",
    "data.video_key",
    "data.audio_key",
    *(
        f"trainer.{name}"
        for name in ("resume_mode", "resume_from_path", "default_local_dir", "save_freq", "nnodes")
    ),
    *(
        f"trainer.{name}"
        for name in ("max_actor_ckpt_to_keep", "n_gpus_per_node", "v1.trainer_mode")
    ),
    "trainer.v1.sampler.sync_refill_failed_groups",
]
# Absent from verl's files; in this module's source.
BY_CODE = {
    "trainer.remove_previous_ckpt_in_save": "verl.trainer.ppo.v1.trainer_base",
    "reward.custom_reward_function.reward_kwargs": "verl.trainer.ppo.reward",
    "reward.reward_kwargs": "verl.experimental.reward_loop.reward_manager.dapo",
}
GROUPS = "trainer|data|algorithm|actor_rollout_ref|reward|distillation|skip|ray_kwargs|transfer_queue|critic"  # noqa: E501
KEY = re.compile(rf"(?!data\.pt$)({GROUPS})(\.[a-z_0-9]+)+")  # data.pt is a file
FILES = [
    *sorted((PACKAGE / "on_verl").rglob("*.py")),
    *sorted((PACKAGE / "preflight").glob("*.py")),
]
FILES += [PACKAGE / "mix_trainer_experience.py", PACKAGE / "main_mix_ppo.py"]


@pytest.fixture(scope="module")
def verls():
    """verl's own configuration, as composed without ours."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer")


def leaves(node, before=""):
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def has(config, key):
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return node is not None and name in node


def may_be_set(config, key):
    """Whether the configuration has the key, or the data class that its node becomes in
    verl does.
    """
    node = OmegaConf.select(config, key.rpartition(".")[0]) or {}
    known = fields(get_class(node["_target_"])) if "_target_" in node else ()
    return has(config, key) or key.rpartition(".")[2] in {each.name for each in known}


def settings_of_the_loss():
    return {f"actor_rollout_ref.actor.policy_loss.{each.name}" for each in fields(LossSettings)}


@pytest.mark.parametrize(
    "file", sorted(CONFIG.rglob("*trainer.yaml")) + sorted(CONFIG.glob("stack/*.yaml")), ids=shown
)
def test_each_key_we_set_is_one_of_verls_or_ours(verls, file):
    keys = leaves(OmegaConf.to_container(OmegaConf.load(file), resolve=False))
    asked = {next((node for node in OPEN if key.startswith(f"{node}.")), key) for key in keys}
    theirs = (
        {key for key in asked if not key.startswith(OURS)} - settings_of_the_loss() - set(BY_CODE)
    )
    assert {key for key in theirs if not may_be_set(verls, key)} == set()


def named(path):
    """Keys that a file names: in a string of its own, or as attributes of ``config``."""
    for node in ast.walk(tree(path)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and KEY.fullmatch(node.value)
        ):
            yield node.value
        elif isinstance(node, ast.Attribute) and (name := dotted(node)):
            key = re.sub(r"^(self\.)?config\.", "", name)
            key = re.sub(r"\.(get|items|pop)$", "", key)
            if key != name and KEY.fullmatch(key):
                yield key


@pytest.mark.parametrize("path", [path for path in FILES if any(named(path))], ids=shown)
def test_each_key_we_name_is_there(composed, path):
    asked = set(named(path)) - set(BY_CODE) - set(GONE)
    assert {key for key in asked if not has(composed, key)} == set()


@pytest.mark.parametrize("key", BY_CODE)
def test_each_key_that_only_verls_code_knows_is_there(key):
    source = inspect.getsource(importlib.import_module(BY_CODE[key]))
    assert f'get("{key.rpartition(".")[2]}"' in source


@pytest.mark.parametrize("key", READ)
def test_each_key_we_read_by_parts_is_there(composed, key):
    assert has(composed, key)


@pytest.fixture(scope="module")
def composed():
    """verl's configuration and ours, as a training has it."""
    return job()


def test_the_classes_that_become_of_a_node_are_verls_or_extend_them(composed, verls):
    for node in ("actor_rollout_ref.actor.policy_loss", "actor_rollout_ref.actor.optim"):
        ours, theirs = (OmegaConf.select(config, node)._target_ for config in (composed, verls))
        assert ours != theirs and issubclass(get_class(ours), get_class(theirs))
