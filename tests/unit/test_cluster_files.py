"""exp_scripts/cluster/: what can be seen of the launchers without their clusters. The fields are
those of the documents of Slurm (sbatch), KubeRay (ray.io/v1), SkyPilot (task YAML) and Docker.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "exp_scripts" / "cluster"
SLURM = {
    *("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "time", "signal"),
    *("requeue", "open-mode", "output"),
}
SKY = {"name", "num_nodes", "workdir", "resources", "envs", "file_mounts", "setup", "run"}
RESOURCES = {"accelerators", "use_spot", "disk_size"}
RAY_JOB = {"entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec"}
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
SHELL = {"slurm.sbatch": FOLDER / "slurm.sbatch", "ray_job.sh": FOLDER / "ray_job.sh"}


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


def parses(text):
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_launcher_is_untested():
    names = {*SHELL, "skypilot.yaml", "kuberay.yaml", "Dockerfile"}
    assert {path.name for path in FOLDER.iterdir()} == names
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert all(name in page for name in names)


@pytest.mark.parametrize("path", SHELL.values(), ids=SHELL)
def test_the_shell_reads_it(path):
    parses(path.read_text())


def test_slurm_signals_the_command_before_the_limit_and_queues_the_job_again():
    text = SHELL["slurm.sbatch"].read_text()
    lines = text.splitlines()
    given = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", text, re.M)
    assert {name for name, _ in given} == SLURM and len(given) == len(SLURM)
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert not [line for line in lines[:last] if line and not line.startswith("#")]
    assert dict(given)["signal"] == "B:TERM@600", "to the script alone: Ray would die of it"


FAKE = {
    "scontrol": 'case $1 in show) echo one;; *) echo "$@" >> "$LOG";; esac',
    "srun": "exec sleep 60",
    "ray": 'echo "  node_id: 1"',
    "python": """exec "$REAL" -c "
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(.5), sys.exit(143)))
open('$LOG', 'a').write(' '.join(sys.argv[1:]) + chr(10))
time.sleep(60)
" "$@" """,
}


def test_the_job_is_queued_again_once_the_command_has_saved(tmp_path):
    """The script itself, with ten lines in the place of Slurm, Ray and the training."""
    (tmp_path / "bin").mkdir()
    for name, text in FAKE.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".venv-gpu" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-gpu" / "bin" / "activate").write_text("")
    (tmp_path / "exp_scripts").symlink_to(ROOT / "exp_scripts")
    log = tmp_path / "log"
    for name in ("openr1.parquet", "valid.parquet"):
        (tmp_path / name).touch()
    environment = os.environ | {
        **{"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "LOG": str(log), "REAL": sys.executable},
        **{"SLURM_JOB_NODELIST": "one", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "7"},
        **{"MODEL_PATH": "m", "DATA_DIR": str(tmp_path), "SAVE_PATH": "s", "PYTHON": "python"},
    }
    command = ["bash", str(SHELL["slurm.sbatch"]), "trainer.save_freq=3"]
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not log.exists() and time.monotonic() < until:
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 143
    finally:
        os.killpg(job.pid, signal.SIGKILL)
    started, queued = log.read_text().splitlines()
    assert queued == "requeue 7"
    assert "ray_init.address=auto" in started and started.endswith("trainer.save_freq=3")
    assert "trainer.nnodes=1" in started


def test_skypilots_task_has_its_fields_and_keeps_checkpoints_in_a_bucket():
    task = read("skypilot.yaml")
    assert task.keys() == SKY and task["resources"].keys() == RESOURCES
    (mounted,) = task["file_mounts"]
    assert task["envs"]["SAVE_PATH"].startswith(f"{mounted}/")
    parses(task["run"])
    parses(task["setup"])


def test_the_ray_job_has_the_fields_of_its_kind():
    job = read("kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"].keys() == RAY_JOB
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster.keys() == {"headGroupSpec", "workerGroupSpecs"}
    assert all(group.keys() == GROUP for group in cluster["workerGroupSpecs"])
    workers = sum(group["replicas"] for group in cluster["workerGroupSpecs"])
    assert f"N_NODES={workers + 1} " in job["spec"]["entrypoint"]
    (container,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in cluster["headGroupSpec"]["template"]["spec"]["volumes"]
    }
    parses(job["spec"]["entrypoint"])


def test_the_image_is_made_of_verls():
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    words = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert words == ["FROM", "COPY", "WORKDIR", "RUN"]
    assert (
        "setup_gpu.sh --container" in lines[-1]
        and "--container" in (ROOT / "exp_scripts" / "setup_gpu.sh").read_text()
    )


def test_the_scripts_help_is_its_own_header():
    script = ROOT / "exp_scripts" / "run_exgrpo.sh"
    for option in ("--help", "-h"):
        printed = subprocess.run(["bash", script, option], capture_output=True, text=True)
        assert printed.returncode == 0 and printed.stdout.startswith("ExGRPO with the released")
        assert (
            "trainer.experience=False, ...\n" in printed.stdout and "set -e" not in printed.stdout
        )
