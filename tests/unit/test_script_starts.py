"""Scripts of eval/ and data/: started by path from any folder, and by name from the root; trainers
of benchmarks/.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import watched

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    "exgrpo_eval.generate_vllm",
    "exgrpo_eval.compare",
    "exgrpo_eval.report",
    "exgrpo_eval.sample_size",
    "exgrpo_data.make_tasks",
    "exgrpo_data.prepare_train",
    "exgrpo_data.prepare_eval",
    "exgrpo_data.thinking_copy",
]
BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def start(command, folder, **variables):
    done = watched.run(command, cwd=folder, env=BARE | variables, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_by_path_and_by_name_it_is_the_same_script(name, tmp_path):
    path = ROOT.joinpath(*name.removeprefix("exgrpo_").split(".")).with_suffix(".py")
    by_path = start([sys.executable, str(path), "--help"], tmp_path)
    assert by_path == start([sys.executable, "-m", name, "--help"], ROOT)
    assert by_path.startswith("usage: ")


def test_oats_grader_starts_by_its_path(tmp_path):
    grader = ROOT / "eval" / "oat_grader.py"
    assert (
        start([sys.executable, str(grader)], tmp_path) == "ready\n"
    )  # and ends, where nobody asks


COMPOSE = """import os, runpy, sys
import exgrpo.mix_trainer_experience
for path in sys.argv[1:]:
    if os.fork() == 0:
        sys.argv[:] = [path, "--cfg", "job"]
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    assert os.wait()[1] == 0, path
"""


def test_a_benchmarks_trainer_composes_its_configuration(tmp_path):
    """Forks of a process that has imported what takes each of them most of its time."""
    folder = ROOT / "benchmarks"  # a script's own, which a fork has to be told
    trainers = [str(folder / f"{name}.py") for name in ("paired_trainer", "overlap_trainer")]
    printed = start([sys.executable, "-c", COMPOSE, *trainers], tmp_path, PYTHONPATH=str(folder))
    assert (
        printed.count("experience_ratio: 0.5\n") == printed.count("total_epochs: ") == 2
    )  # ours and verl's
