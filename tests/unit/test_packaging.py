"""The wheel and the source archive: what they hold, what runs from them, what their commands say
without the stack.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import exgrpo

ROOT = Path(__file__).parents[2]
RULES = ROOT / "packages" / "math-verify-rules"
FOLDERS = {
    "exgrpo": "exgrpo",
    "exgrpo_tools": "packages/exgrpo_tools",
    "exgrpo_eval": "eval",
    "exgrpo_data": "data",
}
COPIED = ["setup.py", "pyproject.toml", "README.md", "LICENSE"]
FRAMEWORKS = [
    "ray",
    "verl",
    "vllm",
    "torch",
    "transformers",
    "omegaconf",
    "hydra",
    "pandas",
    "pyarrow",
    "tqdm",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The archives of a copy of the checkout, and the unpacked wheel."""
    folder = tmp_path_factory.mktemp("source")
    for name in COPIED:
        shutil.copy(ROOT / name, folder)
    for name in ("exgrpo", "packages", "eval", "data"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests/unit", "docs"):
        (folder / name).mkdir(parents=True)
        (folder / name / "large.json").touch()
        (folder / name / "test_it.py").touch()
    command = [sys.executable, "setup.py", "--quiet", "sdist", "bdist_wheel"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    (archive,) = (folder / "dist").glob("*.tar.gz")
    zipfile.ZipFile(wheel).extractall(folder / "wheel")
    return archive, folder / "wheel"


def run(wheel: Path, code: str, stack: bool = False) -> subprocess.CompletedProcess[str]:
    """With the package from the wheel; without the stack: as if nothing were installed but
    numpy.
    """
    block = (
        f"import sys\nfor name in {[] if stack else FRAMEWORKS}:\n    sys.modules[name] = None\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    command = [sys.executable, "-c", block + code]
    return subprocess.run(command, cwd=wheel, env=environment, capture_output=True, text=True)


def files_of(folder: Path) -> set[str]:
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_packages_with_everything_it_reads(built):
    _, wheel = built
    for name, home in FOLDERS.items():
        assert files_of(wheel / name) == files_of(ROOT / home) - {"ruff.toml", "eval.sh"}
    assert {
        path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")
    } == FOLDERS.keys()


def test_the_wheel_holds_no_file_of_the_full_grader(built):
    rules = {path.read_bytes() for path in (RULES / "src").rglob("*.py")}
    wheel = {path.read_bytes() for path in built[1].rglob("*.py")}
    assert len(rules) > 20 and not rules & wheel and not (built[1] / "exgrpo" / "grading").exists()


def test_the_full_grader_has_a_wheel_of_its_own_that_works_without_this_package(tmp_path):
    folder = shutil.copytree(
        RULES, tmp_path / "rules", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("math_verify_rules-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "wheel")
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    where = "import math_verify_rules\nprint(math_verify_rules.__file__)\n"
    done = run(folder / "wheel", f"sys.modules['exgrpo'] = None\n{code}{where}")
    assert done.stdout == f"{folder / 'wheel' / 'math_verify_rules' / '__init__.py'}\n", done.stderr
    assert (folder / "wheel" / "math_verify_rules" / "cases.jsonl").is_file()


def test_the_source_archive_holds_what_the_wheel_is_made_of_and_no_tests(built):
    archive, _ = built
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {*COPIED, "exgrpo/config/stack/one_gpu.yaml"} <= names
    assert not [
        name
        for name in names
        if name.startswith(("tests", "docs", "packages/math", "packages/verl"))
    ]


def test_the_metadata(built):
    (metadata,) = built[1].glob("*.dist-info/METADATA")
    said = message_from_string(metadata.read_text())
    assert said["Version"] == exgrpo.__version__ and said["Requires-Python"] == ">=3.11"
    needed = [line for line in said.get_all("Requires-Dist") if "extra" not in line]
    assert needed == ["numpy"]
    assert f"version: {exgrpo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {exgrpo.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_light_parts_run_from_the_wheel_with_numpy_alone(built):
    code = """
import exgrpo
from exgrpo import SelectiveReplay, TrajectoryBuffer
buffer = TrajectoryBuffer(seed=0)
for correct in (True, False):
    buffer.add({"prompt": "p", "rollout": "r", "reward": 1.0, "is_correct": correct, "entropy": 0.1})
print(SelectiveReplay(replay_probability=1.0).choose(buffer, size=1).texts, exgrpo.__file__)
"""  # noqa: E501
    done = run(built[1], code)
    assert done.stdout == f"['r'] {built[1] / 'exgrpo' / '__init__.py'}\n", done.stderr


def test_verl_alone_loads_something_of_it_and_nothing_is_of_a_cpu(built):
    (file,) = built[1].glob("*.dist-info/entry_points.txt")
    assert [line for line in file.read_text().splitlines() if line.startswith("[")] == [
        "[console_scripts]",
        "[verl.plugins]",
    ]
    assert not [
        path
        for path in (built[1] / "exgrpo").rglob("*")
        if "cpu" in path.name or "prepared" in path.name
    ]


def commands(wheel: Path) -> dict[str, EntryPoint]:
    (file,) = wheel.glob("*.dist-info/entry_points.txt")
    lines = file.read_text().partition("[console_scripts]\n")[2].partition("\n\n")[0].splitlines()
    points = [line.split(" = ") for line in lines]
    return {name: EntryPoint(name, value, "console_scripts") for name, value in points}


def test_each_command_is_a_function(built):
    points = commands(built[1])
    assert points.keys() == {
        f"exgrpo-{name}" for name in ("train", "data", "eval", "inspect", "sizing")
    }
    assert all(callable(point.load()) for point in points.values())


def call(point: EntryPoint, *arguments: str) -> str:
    """What the script does that pip makes for a command."""
    return (
        f"sys.argv = {[point.name, *arguments]}\nfrom {point.module} import "
        f"{point.attr}\nsys.exit({point.attr}())"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "status", "message"),
    [
        (
            "exgrpo-train",
            ["a=b"],
            2,
            "exgrpo: hydra is not installed: training needs bash exp_scripts/setup_gpu.sh",
        ),
    ],
)
def test_a_command_without_the_stack_ends_in_one_line(built, name, arguments, status, message):
    done = run(built[1], call(commands(built[1])[name], *arguments))
    assert (
        done.returncode == status
        and done.stderr.startswith(message)
        and done.stderr.count("\n") == 1
    ), done.stderr


def test_the_training_command_finds_its_configuration(built):
    done = run(
        built[1],
        call(commands(built[1])["exgrpo-train"], "stack=one_gpu", "--cfg", "job"),
        stack=True,
    )
    assert (
        "  experience_ratio: 0.5\n" in done.stdout
        and "gpu_memory_utilization: 0.4\n" in done.stdout
    ), done.stderr


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_site_is_built_with_what_the_extra_names(built):
    (metadata,) = built[1].glob("*.dist-info/METADATA")
    lines = message_from_string(metadata.read_text()).get_all("Requires-Dist")
    extra = dict(line.partition(";")[0].split("==") for line in lines if 'extra == "docs"' in line)
    docs = pins("requirements/docs.txt")
    assert extra and extra.items() <= docs.items()
    assert (
        not docs.keys() & pins("requirements/cpu.txt").keys()
    )  # a package has its pin in one place


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("exgrpo-eval", ("compare", "--help"), "--shared_only"),
        ("exgrpo-eval", ("generate", "--help"), "--grade_only"),
        ("exgrpo-data", ("train", "--help"), "--question_key"),
        ("exgrpo-inspect", ("--help",), "--quarantine"),
        ("exgrpo-sizing", ("7B",), "billion parameters"),
    ],
)
def test_a_tool_runs_from_the_wheel(built, name, arguments, shown):
    point = commands(built[1])[name]
    home = (
        f"import {point.module.partition('.')[0]} as home\nassert {str(built[1])!r} in "
        "home.__file__\n"
    )
    done = run(built[1], home + call(point, *arguments), stack=True)
    assert done.returncode == 0 and shown in done.stdout, done.stderr
