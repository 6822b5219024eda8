"""Scripts of eval/ and data/: started by path from any folder, and by name from the root; trainers of benchmarks/."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import watched

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    "eval.generate_vllm",
    "eval.compare",
    "eval.report",
    "eval.sample_size",
    "data.make_tasks",
    "data.prepare_train",
    "data.prepare_eval",
]
BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def start(command, folder):
    done = watched.run(command, cwd=folder, env=BARE, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_by_path_and_by_name_it_is_the_same_script(name, tmp_path):
    path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    by_path = start([sys.executable, str(path), "--help"], tmp_path)
    assert by_path == start([sys.executable, "-m", name, "--help"], ROOT)
    assert by_path.startswith("usage: ")


def test_the_second_grader_starts_by_its_path(tmp_path):
    grader = ROOT / "eval" / "second_grader.py"
    assert start([sys.executable, str(grader)], tmp_path) == "ready\n"  # and ends, where nobody asks


@pytest.mark.parametrize("name", ["paired_trainer", "growth_trainer", "overlap_trainer"])
def test_a_benchmarks_trainer_composes_its_configuration(name, tmp_path):
    printed = start([sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--cfg", "job"], tmp_path)
    assert "experience_ratio: 0.5\n" in printed and "fsdp_config:\n" in printed  # ours and verl's
