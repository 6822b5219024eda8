"""Puts benchmarks/ on the import path, which holds what these scripts share with those there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
