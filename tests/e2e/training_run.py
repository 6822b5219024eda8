"""A training as a user starts it, for the tests of this folder."""

import contextlib
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil
from forked_driver import ForkedDriver
from watched import Watch

import process_tree
from verl_cpu import weight_socket
from verl_cpu.prepared_workers import PATIENCE

ROOT = Path(__file__).parents[2]
K = 4  # rollouts of a question
KL_AND_ENTROPY = [
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.entropy_coeff=0.001",
]


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
        shared = any(
            "py_executable" in argument for argument in self.arguments
        )  # see the fixture `forks`
        if shared:
            environment[weight_socket.TRAINING] = uuid.uuid4().hex[:12]
        self.log = self.folder / f"{self.name}.log"
        arguments = [*self.arguments, f"trainer.rollout_data_dir={self.dump}"]
        start = ForkedDriver if shared else _start
        self.process = start(arguments, self.log, environment, self.folder)
        self.started = process_tree.look(self.process.pid).started
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
            self.watch.until(
                lambda: self.metrics_file.exists() and max([0, *self.metrics()]) >= step
            )
        finally:
            self.kill()

    def titles(self):
        """Process -> what it is called, of all of its processes."""
        found = {}
        for pid in self._processes():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                found[process] = " ".join(process.cmdline()).strip()
        return found

    def kill(self):
        """SIGKILL to whatever is left of it, and what that had in shared memory is removed, as by a
        guard.
        """
        for path in process_tree.end(self._processes):
            Path(path).unlink(missing_ok=True)
        self.process.wait()

    def _processes(self):
        """Those of its session, and its Ray's: forks of a shared process would outlive Ray."""
        return sorted(
            {*process_tree.in_session(self.process.pid, self.started), *of_ray(self.process.pid)}
        )

    def metrics(self):
        """step -> metrics, as far as they are written."""
        lines = self.metrics_file.read_text().split("\n")[:-1]
        return {entry["step"]: entry["data"] for entry in map(json.loads, lines)}

    def drawn(self, step):
        """uid -> prompt text, and key -> response text, of a step's rollouts."""
        rows = [json.loads(line) for line in (self.dump / f"{step}.jsonl").read_text().splitlines()]
        return {row["uid"].split("_")[0]: row["input"] for row in rows}, {
            row["uid"]: row["output"] for row in rows
        }

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


def of_ray(pid):
    """Process ids of the living that write into the logs of the Ray that this process began."""
    found = []
    for each in process_tree.everything():
        with contextlib.suppress(OSError):
            if f"_{pid}/logs/" in os.readlink(f"/proc/{each.pid}/fd/1") and not each.ended:
                found.append(each.pid)
    return found


def _start(arguments, log, environment, folder):
    with open(log, "w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
