"""Training runs of the real stack on the CPU, as a user starts them."""

import contextlib
import gc
from pathlib import Path

import forked_driver
import pytest
from omegaconf import OmegaConf
from training_run import K

from verl_cpu import prepared_workers


@pytest.fixture(scope="session")
def questions(tmp_path_factory):
    import tasks

    folder = tmp_path_factory.mktemp("questions")
    tasks.write(folder)
    return folder


@pytest.fixture(scope="session")
def make_settings(questions):
    """The quickstart's settings at a quarter of its size, for a run in the given folder."""
    import run

    def of(folder):
        return [
            *run.command(folder, seed=0, done=1, overrides=[])[3:],
            f"data.train_files={questions}/train.parquet",
            f"data.val_files={questions}/test.parquet",
            "data.train_batch_size=8",
            f"actor_rollout_ref.rollout.n={K}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "data.val_max_samples=16",
            "actor_rollout_ref.rollout.val_kwargs.n=1",
            "trainer.test_freq=-1",
        ]

    return of


@contextlib.contextmanager
def read_at_import():
    """Within it a process that imports for others starts, with what verl and the hub's client read
    at their import.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_PLATFORM", "cpu")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield patch


@contextlib.contextmanager
def shared(job=prepared_workers.FIRST_JOB):
    """The program by which Ray's workers are forks of one prepared process for many runs, which
    imports but once.

    They have one thread each: two files' runs share two cores.
    """
    stack = OmegaConf.load(Path(prepared_workers.__file__).with_name("stack") / "cpu.yaml")
    variables = stack.ray_kwargs.ray_init.runtime_env.env_vars
    variables.OMP_NUM_THREADS = "1"  # read when torch is imported
    variables.VERL_ENGINE_VENDOR = "exgrpo"  # as in our configuration; read when verl is imported
    workers, thresholds = prepared_workers.PreparedWorkers(), gc.get_threshold()
    with read_at_import() as patch:
        patch.setattr(prepared_workers, "FIRST_JOB", job)
        workers.on_run_start(stack)
    gc.set_threshold(*thresholds)
    yield stack.ray_kwargs.ray_init.runtime_env.py_executable
    workers.on_run_end(stack)


@pytest.fixture(scope="session")
def prepared():
    with shared() as program:
        yield program


@pytest.fixture
def prepared_second():
    """The same for the second job of a Ray that is already there."""
    with shared(job="02000000") as program:
        yield program


@pytest.fixture(scope="session")
def forks(prepared):
    """The override by which a run has them.

    Without it a run of ours has a prepared process of its own, which gives the training its name
    too, and two threads.
    """
    with read_at_import():
        forked_driver.prepare()
    return f"++ray_kwargs.ray_init.runtime_env.py_executable='{prepared}'"


@pytest.fixture
def settings(make_settings, tmp_path):
    return make_settings(tmp_path)
