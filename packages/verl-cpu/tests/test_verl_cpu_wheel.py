"""The wheel: its modules, its settings, the two entry points and the one of Hydra's kind."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_has_everything_and_installs_its_entry_points(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    opened = zipfile.ZipFile(wheel)
    names = {name for name in opened.namelist() if ".dist-info" not in name}
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".yaml")]
    assert names == {path.relative_to(ROOT / "src").as_posix() for path in files}
    (points,) = (name for name in opened.namelist() if name.endswith("entry_points.txt"))
    assert opened.read(points).decode().split() == [
        *("[verl.plugins]", "verl_cpu", "=", "verl_cpu.plugin"),
        *("[vllm.general_plugins]", "verl_cpu", "=", "verl_cpu.vllm_on_cpu:install"),
    ]
