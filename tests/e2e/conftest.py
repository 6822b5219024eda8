"""Training runs of the real stack on the CPU, as a user starts them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from watched import Watch

from exgrpo.on_verl.cpu import weight_socket
from exgrpo.on_verl.cpu.prepared_workers import PATIENCE, prepared_workers

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "exp_scripts" / "quickstart"))
K = 4  # rollouts of a question
KL_AND_ENTROPY = ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.entropy_coeff=0.001"]


@dataclass
class Run:
    """A training in a process group of its own, so that all of it can be killed at once."""

    folder: Path
    arguments: list
    name: str

    def __post_init__(self):
        self.metrics_file = self.folder / f"{self.name}.jsonl"
        self.dump = self.folder / f"dump-{self.name}"
        environment = (
            os.environ
            | PATIENCE
            | {
                "VERL_PLATFORM": "cpu",
                "HF_HUB_OFFLINE": "1",
                "VERL_FILE_LOGGER_PATH": str(self.metrics_file),
                "RAY_worker_niceness": "0",
            }
        )
        if any("py_executable" in argument for argument in self.arguments):  # see the fixture `forks`
            environment[weight_socket.TRAINING] = uuid.uuid4().hex[:12]
        self.log = self.folder / f"{self.name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments, f"trainer.rollout_data_dir={self.dump}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self.watch = Watch(self.process, self.metrics_file, self.log)

    def wait(self):
        """Let it finish; it must end well."""
        try:
            code = self.watch.end()
        finally:
            self.kill()
        assert code == 0, self.watch.said()
        return self.metrics()

    def kill_after(self, step):
        """SIGKILL to the driver as soon as the step has been logged."""
        try:
            self.watch.until(lambda: self.metrics_file.exists() and max([0, *self.metrics()]) >= step)
        finally:
            self.kill()

    def kill(self):
        """SIGKILL to whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def metrics(self):
        """step -> metrics, as far as they are written."""
        lines = self.metrics_file.read_text().split("\n")[:-1]
        return {entry["step"]: entry["data"] for entry in map(json.loads, lines)}

    def drawn(self, step):
        """uid -> prompt text, and key -> response text, of a step's rollouts."""
        rows = [json.loads(line) for line in (self.dump / f"{step}.jsonl").read_text().splitlines()]
        return {row["uid"].split("_")[0]: row["input"] for row in rows}, {row["uid"]: row["output"] for row in rows}

    def sessions(self, step):
        """uid -> sessions of its rows, in what a step trained on."""
        sessions = {}
        for key in self.drawn(step)[1]:
            uid, session, _ = key.rsplit("_", 2)
            sessions.setdefault(uid, []).append(int(session))
        return sessions

    def scores(self, step):
        """key -> reward of a step's rollouts."""
        rows = [json.loads(line) for line in (self.dump / f"{step}.jsonl").read_text().splitlines()]
        return {row["uid"]: round(row["score"], 4) for row in rows}


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


@pytest.fixture(scope="session")
def forks():
    """The override by which Ray's workers are forks of one prepared process for many runs, which imports but once.

    Without it a run of ours has a prepared process of its own, which gives the training its own name too.
    """
    stack = OmegaConf.load(ROOT / "exgrpo" / "config" / "stack" / "cpu.yaml")
    with contextlib.ExitStack() as prepared:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VERL_PLATFORM", "cpu")
            patch.setenv("HF_HUB_OFFLINE", "1")
            prepared.enter_context(prepared_workers(stack))
        executable = stack.ray_kwargs.ray_init.runtime_env.py_executable
        yield f"++ray_kwargs.ray_init.runtime_env.py_executable='{executable}'"


@pytest.fixture
def settings(make_settings, tmp_path):
    return make_settings(tmp_path)
