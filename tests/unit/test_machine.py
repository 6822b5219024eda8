"""What a machine or a joined Ray lacks is said before verl waits for it; a head without CPUs is
enough.
"""

import subprocess
import sys

import pytest
import torch
from composed import configuration, job
from torchdata.stateful_dataloader import StatefulDataLoader

from exgrpo.preflight import machine
from exgrpo.preflight.checks import verify

UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


def test_a_ray_with_too_few_cpus_is_refused_with_the_number_that_is_enough():
    config = job("stack=one_gpu", f"{UNITS}=8", "ray_kwargs.ray_init.num_cpus=12")
    with pytest.raises(
        ValueError, match=rf"^{UNITS}=8: Ray has 12 CPUs, must have 13: 8 for these, 1 for the"
    ):
        machine.verify(config, {})
    machine.verify_cpus(config, 13)


def test_a_ray_that_is_joined_is_asked_once_it_is_joined():
    config = job("ray_kwargs.ray_init.num_cpus=2")
    machine.verify(config, {"RAY_ADDRESS": "10.0.0.1:6379"})
    with pytest.raises(ValueError, match="Ray has 2 CPUs, must have 34"):
        machine.verify(config, {"RAY_TMPDIR": "/nowhere"})


def test_a_ray_that_was_started_on_this_machine_is_joined(tmp_path):
    environment = {"RAY_TMPDIR": str(tmp_path)}
    assert machine.starts_ray(job(), environment)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert not machine.starts_ray(job(), environment)
    assert not machine.starts_ray(job(), {"TMPDIR": str(tmp_path)})
    assert machine.starts_ray(job(), {"TMPDIR": str(tmp_path), "RAY_TMPDIR": "/nowhere"})


def test_more_gpus_than_the_machine_has_are_refused():
    machine.verify_gpus(job("trainer.n_gpus_per_node=4"), 4)
    with pytest.raises(
        ValueError, match=r"trainer\.n_gpus_per_node=8: must be at most the 4 GPUs of this machine"
    ):
        machine.verify_gpus(job(), 4)


@pytest.mark.parametrize(("saved", "given"), [(0, 2), (2, 0)])
def test_another_number_of_loader_workers_on_resume_is_refused(files, saved, given):
    loader = StatefulDataLoader(list(range(4)), num_workers=saved)
    next(iter(loader))
    folder = files / "checkpoints" / "global_step_3"
    folder.mkdir(parents=True)
    torch.save(loader.state_dict(), folder / "data.pt")
    (files / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("3")
    settings = ["trainer.experience=False", f"data.dataloader_num_workers={given}"]
    with pytest.raises(
        ValueError, match=rf"^data\.dataloader_num_workers={given}: must be {saved}, with which "
    ):
        verify(configuration(files, *settings))
    verify(configuration(files, *settings, f"data.dataloader_num_workers={saved}"))


HEAD = """
import ray
from exgrpo import main_mix_ppo
from omegaconf import OmegaConf
from verl.trainer import main_ppo

def run_ppo(config, task_runner_class):
    ray.init(address="local", num_cpus=0, include_dashboard=False, object_store_memory=80_000_000)
    runner = task_runner_class.remote()
    ray.get(runner.__ray_ready__.remote(), timeout=60)
    print("the runner is up")

main_ppo.run_ppo = run_ppo
main_mix_ppo.machine.verify_cpus = lambda config, cpus: print("CPUs", cpus)
main_mix_ppo.train(OmegaConf.create())
"""


def test_the_runner_starts_on_a_ray_head_without_cpus():
    done = subprocess.run(
        [sys.executable, "-c", HEAD], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines()[-2:] == ["CPUs 0", "the runner is up"], done.stderr[-2000:]
