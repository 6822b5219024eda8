"""Adds the checkout's eval/ and data/ to a wheel, below exgrpo_tools/scripts/; all else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CHECKOUT = Path(__file__).resolve().parents[2]


class WithScripts(build_py):
    """An editable installation uses the checkout's folders as they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in ("eval", "data"):
            target = Path(self.build_lib) / "exgrpo_tools" / "scripts" / name
            shutil.copytree(CHECKOUT / name, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


setup(cmdclass={"build_py": WithScripts})
