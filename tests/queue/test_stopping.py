"""SIGTERM to a command that waits for its runner, with a real Ray: it ends at once where nothing is
unsaved, after the step where something is, at once at a second signal; with 143, a line, and
nothing left. The trainer itself: tests/e2e/test_exact_resume.py.
"""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import watched
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

import process_tree
from exgrpo.on_verl import stopping
from exgrpo.on_verl.stoppable import StoppableTrainer

COMMAND = """
import sys, time
from pathlib import Path
import ray
from exgrpo.on_verl.stopping import STOP, UNSAVED, Stopping
from exgrpo.on_verl.task_runner import OnThisNode

stopping = Stopping()
folder, unsaved, long = stopping.folder, sys.argv[1] == "unsaved", sys.argv[2] == "long"

@ray.remote(num_cpus=0)
class Runner:
    def __init__(self, folder):
        self.folder = Path(folder)

    def run(self):
        if unsaved:
            (self.folder / UNSAVED).touch()
        print("step begins", flush=True)
        while not (self.folder / STOP).exists():
            time.sleep(.05)
        print("asked", flush=True)
        time.sleep(60 if long else 1)
        print("saved", flush=True)

with stopping.ends():
    stopping.listen()
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=True)
    ray.get(OnThisNode(Runner, stopping.listen, str(folder)).remote().run.remote())
"""


@pytest.mark.parametrize(
    ("state", "length", "signals", "saved"),
    [("saved", "short", 1, False), ("unsaved", "short", 1, True), ("unsaved", "long", 2, False)],
)
def test_a_signal_waits_for_what_is_unsaved_and_for_nothing_else(
    tmp_path, state, length, signals, saved
):
    log = tmp_path / "log"
    with log.open("w") as file:
        command = [sys.executable, "-c", COMMAND, state, length]
        environment = os.environ | {"TMPDIR": str(tmp_path), "RAY_TMPDIR": "/tmp"}
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    started, watch = process_tree.look(process.pid).started, watched.Watch(process, log)
    try:
        watch.until(lambda: "step begins" in log.read_text())
        process.send_signal(signal.SIGTERM)
        if signals == 2:
            watch.until(lambda: "asked" in log.read_text())
            process.send_signal(signal.SIGTERM)
        assert watch.end() == 143, log.read_text()
        watched.until(lambda: not process_tree.in_session(process.pid, started))
    finally:
        process_tree.end(lambda: process_tree.in_session(process.pid, started))
    text = log.read_text()
    assert ("saved" in text.replace("finished and saved", "")) == saved
    assert ("the step is finished and saved first" in text) == (state == "unsaved")
    assert text.count("stopped by SIGTERM; the same command continues") == 1
    assert not [*tmp_path.glob("exgrpo-*")] and "Traceback" not in text


class Trainer(StoppableTrainer):
    """verl's trainer without its parts."""

    def __init__(self, save_freq=2):
        self.config = OmegaConf.create({"trainer": {"save_freq": save_freq}})
        self.global_steps, self.total_training_steps, self.saves = 1, 9, []

    def on_sample_end(self):
        raise NotImplementedError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(stopping.FOLDER, str(tmp_path))
    monkeypatch.setattr(PPOTrainer, "_update_actor", lambda self, batch, metrics: batch)
    monkeypatch.setattr(PPOTrainer, "on_step_end", lambda self: None)
    monkeypatch.setattr(
        PPOTrainer, "_save_checkpoint", lambda self: self.saves.append(self.global_steps)
    )
    return SimpleNamespace(
        ask=(tmp_path / stopping.STOP).touch, unsaved=(tmp_path / stopping.UNSAVED).exists
    )


def step(trainer, save=False):
    trainer._update_actor(None, {})
    if save:
        trainer._save_checkpoint()
    trainer.on_step_end()


def test_the_step_of_the_signal_is_saved_once_and_is_the_last(folder):
    trainer = Trainer()
    step(trainer)
    assert folder.unsaved() and trainer.saves == []
    trainer.global_steps = 2
    step(trainer, save=True)
    assert not folder.unsaved() and trainer.total_training_steps == 9
    trainer.global_steps = 3
    folder.ask()
    step(trainer)
    assert trainer.saves == [2, 3] and trainer.total_training_steps == 3 and not folder.unsaved()


def test_one_that_comes_during_a_save_ends_with_that_step(folder):
    trainer = Trainer()
    trainer._update_actor(None, {})
    trainer._save_checkpoint()
    folder.ask()
    trainer.on_step_end()
    assert trainer.saves == [1] and trainer.total_training_steps == 1


def test_a_run_that_never_saves_has_nothing_to_wait_for(folder):
    trainer = Trainer(save_freq=-1)
    folder.ask()
    step(trainer)
    assert trainer.saves == [] and not folder.unsaved() and trainer.total_training_steps == 9
