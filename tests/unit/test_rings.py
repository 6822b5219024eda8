"""Rings: what imports without any framework, file by file, in processes where nothing else can be
imported.
"""

import importlib
import json
import re
import subprocess
import sys

import pytest
from source_code import PACKAGE, imports, shown

import exgrpo

FRAMEWORKS = (
    "ray",
    "verl",
    "vllm",
    "torch",
    "transformers",
    "omegaconf",
    "tensordict",
    "pandas",
    "pyarrow",
)
BLOCK = "import sys\nfor name in {}:\n    sys.modules[name] = None\n"
# memory and mathematics, what is on disk, and the buffer: numpy alone
NUMPY_ONLY = [
    path
    for room in ("experience", "saved", "buffer")
    for path in sorted((PACKAGE / room).glob("*.py"))
    if path.name
    not in ("tensors.py", "policies.py", "rl_dataset_with_experience.py")  # torch; verl
]
# Each module is imported anew, with none of the package before it; only numpy, exgrpo and Python
# itself can be found.
ONE_BY_ONE = """
import importlib, json, sys, traceback

class NumpyAlone:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"numpy", "exgrpo"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, NumpyAlone)
errors = {}
for module in json.loads(sys.stdin.read()):
    for name in [name for name in sys.modules if name.partition(".")[0] == "exgrpo"]:
        del sys.modules[name]
    try:
        importlib.import_module(module)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f"{frame.filename}:{frame.lineno}: " for frame in frames if "exgrpo" in frame.filename]
        errors[module] = "".join(ours[-1:]) + str(error)
print(json.dumps(errors))
"""  # noqa: E501


def python(code, blocked=(), given=""):
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(list(blocked)) + code],
        input=given,
        capture_output=True,
        text=True,
    )


def module(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


@pytest.fixture(scope="module")
def import_errors():
    """Module -> why it cannot be imported with numpy alone."""
    done = python(ONE_BY_ONE, given=json.dumps(["pyarrow", *map(module, NUMPY_ONLY)]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", NUMPY_ONLY, ids=shown)
def test_ring_0_imports_without_any_framework(import_errors, path):
    assert module(path) not in import_errors, import_errors[module(path)]


def test_numpy_alone_is_alone(import_errors):
    assert import_errors["pyarrow"] == "pyarrow is blocked"


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
assert SelectiveReplay("uniform", 1.0).choose(buffer, 1).texts == ["r"]
"""
    done = python(code, FRAMEWORKS)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_nothing_else():
    done = python("import exgrpo\nprint(exgrpo.__version__)", ["numpy", *FRAMEWORKS])
    assert done.returncode == 0 and re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout), done.stderr


def test_importing_the_package_imports_none_of_its_modules():
    done = python(
        "import sys, exgrpo\nprint([name for name in sys.modules if name.startswith('exgrpo')])"
    )
    assert done.stdout == "['exgrpo']\n", done.stderr


@pytest.mark.parametrize("name", ["mixed_policy_loss_", "numpy", "importlib_"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'exgrpo' has no attribute '{name}'"):
        getattr(exgrpo, name)


def test_the_lazy_names_are_those_that_are_announced():
    announced = [name.name.rpartition(".")[::2] for name in imports(PACKAGE / "__init__.py")]
    typed = {(home, name) for home, name in announced if home.startswith("exgrpo.") and name != "*"}
    rooms = [importlib.import_module(home) for home, name in announced if name == "*"]
    typed |= {(room.__name__, name) for room in rooms for name in room.__all__}
    lazy = set(exgrpo.__all__) - {"__version__"}
    assert sorted(lazy) == sorted(name for _, name in typed) and set(exgrpo.__all__) <= set(
        dir(exgrpo)
    )
    need_torch = ("exgrpo.advantages", "exgrpo.mix_core_alg", "exgrpo.buffer.tensors")
    for home, name in typed:
        if home not in need_torch:  # its own tests import it
            assert getattr(exgrpo, name) is getattr(importlib.import_module(home), name)
