"""The entry point by which verl's own command has exgrpo's trainers: what it costs, and what it brings."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from composed import configuration
from omegaconf import OmegaConf, open_dict

from exgrpo.verl_plugin import Preflight


def test_it_is_verls_entry_point_and_its_import_brings_nothing_large():
    (point,) = [each for each in entry_points(group="verl.plugins") if each.name == "exgrpo"]
    assert point.value == "exgrpo.verl_plugin"
    code = "import sys, exgrpo.verl_plugin\nprint({'torch', 'verl', 'ray', 'numpy', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


BY_VERL = """
import sys, verl
assert "verl.trainer.ppo.v1" not in sys.modules and "exgrpo.mix_trainer_experience" not in sys.modules
{before}
from verl.trainer.ppo.v1 import get_trainer_cls
print(get_trainer_cls("sync").__name__, get_trainer_cls({name!r}).__module__)
"""


def test_verl_knows_our_trainers_once_it_knows_its_own():
    code = BY_VERL.format(before="", name="exgrpo_separate_async")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "PPOTrainerSync exgrpo.mix_trainer_experience\n", done.stderr[-1000:]


def test_a_trainer_of_ours_that_cannot_be_imported_is_one_line_and_verl_goes_on():
    code = BY_VERL.format(before="sys.modules['exgrpo.on_verl.rescue'] = None", name="sync")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "PPOTrainerSync verl.trainer.ppo.v1.trainer_sync\n", done.stderr[-1000:]
    assert "exgrpo: no trainer of it works: " in done.stderr


RAY = ["+ray_kwargs.ray_init.address=local", "+ray_kwargs.ray_init.num_gpus=8", "ray_kwargs.ray_init.num_cpus=64"]


def command(files, name, *overrides):
    config = configuration(files, *RAY, *overrides)
    with open_dict(config):
        config.hydra = {"job": {"name": name}}
    return config


def test_verls_own_command_has_the_checks_and_what_follows_from_settings(files):
    config = command(files, "main_ppo", "actor_rollout_ref.actor.policy_loss.loss_mode=gspo")
    Preflight().on_run_start(config)
    assert config.actor_rollout_ref.actor.policy_loss.fresh_loss_mode == "gspo"
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "exgrpo"
    with pytest.raises(SystemExit, match=r"^exgrpo: data.gen_batch_size=4: must be 1"):
        Preflight().on_run_start(command(files, "main_ppo", "data.gen_batch_size=4"))
    with pytest.raises(SystemExit, match=r"^exgrpo: transfer_queue.*: Ray has 4 CPUs, must have 34"):
        Preflight().on_run_start(command(files, "main_ppo", "ray_kwargs.ray_init.num_cpus=4"))


def test_our_own_command_checks_by_itself(files):
    Preflight().on_run_start(command(files, "main_mix_ppo", "data.gen_batch_size=4"))


def test_our_trainer_under_verls_own_configuration_is_one_line():
    from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer

    trainer = object.__new__(ExperienceMixPPOTrainer)
    trainer.config = OmegaConf.create({"trainer": {"v1": {"trainer_mode": "exgrpo"}}})
    with pytest.raises(
        ValueError, match=r"^trainer.experience: missing; verl's own command needs --config-path pkg://"
    ):
        trainer._build_replay_buffer()
