"""Ring 0 imports nothing of the frameworks, each module in a fresh process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import exgrpo

FRAMEWORKS = ("ray", "verl", "vllm", "torch", "transformers", "omegaconf", "tensordict", "pandas", "pyarrow")
FOLDER = Path(exgrpo.__file__).parent
# memory and mathematics, what is on disk, and the buffer import without any framework, file by file
NUMPY_ONLY = [
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    for room in ("experience", "saved", "replay")
    for path in sorted((FOLDER / room).glob("*.py"))
    if path.name not in ("__init__.py", "tensors.py", "policies.py")  # the tensors' room is torch's
]
BLOCK = "import sys\nfor name in {}:\n    sys.modules[name] = None\n"


def python(code, blocked=()):
    return subprocess.run([sys.executable, "-c", BLOCK.format(list(blocked)) + code], capture_output=True, text=True)


def test_ring_0_imports_without_any_framework():
    done = python("\n".join(f"import {module}" for module in NUMPY_ONLY), FRAMEWORKS)
    assert done.returncode == 0, done.stderr


def test_the_loss_needs_torch_alone():
    code = "import exgrpo.mix_core_alg, exgrpo\nexgrpo.mixed_policy_loss, exgrpo.compute_grpo_loss"
    done = python(code, [name for name in FRAMEWORKS if name != "torch"])
    assert done.returncode == 0, done.stderr


def test_the_block_blocks():
    done = python("import torch", FRAMEWORKS)
    assert done.returncode == 1 and "ModuleNotFoundError" in done.stderr


def test_a_pool_lives_on_numpy_alone():
    code = """
import numpy as np
from exgrpo import ExperienceConfig, ExperiencePool, RolloutGroup, Trajectory
pool = ExperiencePool(ExperienceConfig.from_mapping({}, 4))
pool.observe(RolloutGroup("q", 4, (Trajectory([1], [-1.0], 0),)))
assert pool.choose(1, np.random.default_rng(0)) == ["q"]
"""
    done = python(code, FRAMEWORKS)
    assert done.returncode == 0, done.stderr


def test_a_buffer_lives_on_numpy_alone():
    code = """
from exgrpo import DifficultyBucketer, SelectiveReplay, TrajectoryBuffer
buffer = TrajectoryBuffer(bucketer=DifficultyBucketer("has_code"))
buffer.add({"prompt": "q", "rollout": "r", "reward": 1, "is_correct": True, "entropy": 0.5})
assert SelectiveReplay("uniform", 1.0).choose(buffer, 1).rollouts == ["r"]
"""
    done = python(code, FRAMEWORKS)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_nothing_else():
    done = python("import exgrpo\nprint(exgrpo.__version__)", ["numpy", *FRAMEWORKS])
    assert done.returncode == 0 and re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout), done.stderr


def test_importing_the_package_imports_none_of_its_modules():
    done = python("import sys, exgrpo\nprint([name for name in sys.modules if name.startswith('exgrpo')])")
    assert done.stdout == "['exgrpo']\n", done.stderr


@pytest.mark.parametrize("name", ["mixed_policy_loss_", "numpy", "importlib_"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'exgrpo' has no attribute '{name}'"):
        getattr(exgrpo, name)


def test_the_lazy_names_are_those_that_are_announced():
    assert sorted(exgrpo.__all__) == sorted({*exgrpo._HOME, "__version__"})
    assert set(exgrpo.__all__) <= set(dir(exgrpo))
    for name, home in exgrpo._HOME.items():
        if home not in ("exgrpo.mix_core_alg", "exgrpo.replay.tensors"):  # torch; its own tests import it
            assert getattr(exgrpo, name).__module__ == home
