"""The entry point by which verl's own command has exgrpo's trainers: what it costs, and what it
brings.
"""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from composed import configuration, job
from omegaconf import OmegaConf, open_dict

from exgrpo.preflight.verls_command import Preflight


def run(code, **environment):
    """What a process prints that has our configuration's variables in its environment, or not."""
    plain = {name: value for name, value in os.environ.items() if name != "VERL_ENGINE_VENDOR"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout


def test_a_process_of_plain_verl_has_the_entry_points_module_and_nothing_else_of_ours():
    (point,) = [each for each in entry_points(group="verl.plugins") if each.name == "exgrpo"]
    assert point.value == "exgrpo.verl_plugin"
    code = """
import sys
before = [*sys.meta_path]
import verl
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "exgrpo"), sys.meta_path == before)
"""  # noqa: E501
    assert run(code) == "exgrpo exgrpo.verl_plugin True\n"


def test_the_entry_points_module_is_light():
    code = (
        "import sys, exgrpo.verl_plugin\nprint({'torch', 'verl', 'ray', 'numpy', 'omegaconf'} "
        "& {*sys.modules})"
    )
    assert run(code, VERL_ENGINE_VENDOR="exgrpo") == "set()\n"


def test_a_worker_of_our_configuration_knows_our_trainers_once_it_knows_verls():
    code = """
import sys, verl
assert "verl.trainer.ppo.v1" not in sys.modules and "exgrpo.mix_trainer_experience" not in sys.modules
from verl.trainer.ppo.v1 import get_trainer_cls
print(get_trainer_cls("sync").__name__, get_trainer_cls("exgrpo_separate_async").__module__)
"""  # noqa: E501
    variables = OmegaConf.to_container(job().ray_kwargs.ray_init.runtime_env.env_vars)
    assert run(code, **variables) == "PPOTrainerSync exgrpo.mix_trainer_experience\n"


RAY = [
    "+ray_kwargs.ray_init.address=local",
    "+ray_kwargs.ray_init.num_gpus=8",
    "ray_kwargs.ray_init.num_cpus=64",
]


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
    with pytest.raises(
        SystemExit, match=r"^exgrpo: transfer_queue.*: Ray has 4 CPUs, must have 34"
    ):
        Preflight().on_run_start(command(files, "main_ppo", "ray_kwargs.ray_init.num_cpus=4"))


def test_our_own_command_checks_by_itself(files):
    Preflight().on_run_start(command(files, "main_mix_ppo", "data.gen_batch_size=4"))


def test_our_trainer_under_verls_own_configuration_is_one_line():
    from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer

    trainer = object.__new__(ExperienceMixPPOTrainer)
    trainer.config = OmegaConf.create({"trainer": {"v1": {"trainer_mode": "exgrpo"}}})
    with pytest.raises(
        ValueError,
        match=r"^trainer.experience: missing; verl's own command needs --config-path pkg://",
    ):
        trainer._build_replay_buffer()
