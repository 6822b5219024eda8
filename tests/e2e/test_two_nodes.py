"""Two Ray nodes with a disk each: the driver on the one without the actor; trained, saved, killed,
resumed, rotated.

Both nodes are on this machine. The path of the checkpoints is another folder for the processes of
the second node, which live in a mount namespace of their own; the program is given it relative to
the folder it is called from. The first node's workers are forks of a prepared process, each disk
having its own program for Ray's workers; the second's import for themselves.
"""

import contextlib
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from training_run import Run, of_ray
from watched import Watch

import process_tree
from exgrpo.on_verl.checkpoints import marked_step

RAY = Path(sys.executable).parent / "ray"
MOUNTS = (
    os.geteuid() == 0
    and shutil.which("unshare")
    and subprocess.run(["unshare", "-m", "true"]).returncode == 0
)
pytestmark = pytest.mark.skipif(
    not MOUNTS, reason="no mount namespaces here: needs root and unshare"
)


def node(folder, *options, within=()):
    """A Ray node in a process group of its own, outside the folder that the training is called
    from.
    """
    command = [*within, RAY, "start", "--block", "--disable-usage-stats", "--num-cpus=12", *options]
    with open(folder / "nodes.log", "a") as log:
        return subprocess.Popen(
            [*command, "--object-store-memory=300000000"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"RAY_worker_niceness": "0"},
            cwd="/",
            start_new_session=True,
        )


def listens(port):
    """Whether somebody answers there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def up(log):
    """How many nodes have joined, so that their cores and GPUs are counted."""
    return log.read_text().count("Ray runtime started.")


def end(process):
    """Ray's processes end when they are asked to; its command for the first node does not, and is
    killed.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(timeout=5)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The address of two nodes; (the first's disk and the path of both, the second's disk as seen
    from here).
    """
    here, there = tmp_path / "disk", tmp_path / "disk_of_the_second"
    here.mkdir()
    there.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv(
        "RAY_AUTH_MODE", "token"
    )  # one of their own, whatever this machine's user has
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    address, nodes, log = f"127.0.0.1:{port}", [], tmp_path / "nodes.log"
    try:
        nodes.append(
            node(tmp_path, "--head", f"--port={port}", "--num-gpus=0", "--include-dashboard=false")
        )
        Watch(nodes[0], log).until(lambda: listens(port))
        within = ["unshare", "-m", "sh", "-c", f'mount --bind {there} {here} && exec "$@"', "sh"]
        nodes.append(node(tmp_path, f"--address={address}", "--num-gpus=1", within=within))
        Watch(nodes[1], log).until(lambda: up(log) == 2)
        yield address, here, there
    finally:
        for process in reversed(nodes):
            end(process)
        if nodes:
            process_tree.end(functools.partial(of_ray, nodes[0].pid))


def write_program(disk, program):
    """What Ray starts its workers with on this disk; its path."""
    (disk / "worker").write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    (disk / "worker").chmod(0o755)
    return disk / "worker"


def steps(disk, name):
    return sorted(
        int(path.parent.name.removeprefix("global_step_"))
        for path in disk.glob(f"checkpoints/*/{name}")
    )


@pytest.mark.usefixtures("forks")
def test_weights_on_another_nodes_disk(cluster, make_settings, prepared, prepared_second, tmp_path):
    address, here, there = cluster
    write_program(there, sys.executable)

    def run(name, program):
        ray = "ray_kwargs.ray_init"
        arguments = [
            "exgrpo.main_mix_ppo",
            *make_settings(tmp_path),
            "trainer.default_local_dir=disk/checkpoints",
        ]
        arguments += [f"{ray}.address='{address}'", f"{ray}.num_cpus=null", f"{ray}.num_gpus=null"]
        arguments += [f"+{ray}.runtime_env.env_vars.VERL_FILE_LOGGER_PATH={tmp_path}/{name}.jsonl"]
        arguments += [f"+{ray}.runtime_env.py_executable={write_program(here, program)}"]
        arguments += [
            "trainer.save_freq=1",
            "trainer.total_training_steps=5",
            "trainer.experience_start_sratio=0",
        ]
        return Run(tmp_path, arguments, name)

    first = run("first", prepared)
    first.kill_after(2)
    saved = marked_step(here / "checkpoints")
    assert saved in (2, 3)
    second = run("second", prepared_second)
    resumed = second.wait()

    assert sorted(resumed) == list(range(saved + 1, 6))
    said = second.log.read_text(errors="replace")
    assert (
        f"global_step_{saved} has no weights on this disk; they must be on the disks of the "
        "actor's nodes" in said
    )
    assert all(metrics["experience/replayed_groups"] > 0 for metrics in resumed.values())
    # each disk has its own part; the first process kept its two newest, the second its own
    assert steps(here, "actor") == steps(there, "experience") == steps(there, "data.pt") == []
    assert not (there / "checkpoints" / "latest_checkpointed_iteration.txt").exists()
    assert steps(there, "actor") == steps(here, "experience") == [saved - 1, saved, 4, 5]
