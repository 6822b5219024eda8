"""Puts the folders that this study uses on the import path: a script that is started by its path sees its own alone."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = [str(HERE), str(HERE.parent), str(HERE.parent / "ablation"), str(HERE.parent / "quickstart"), str(ROOT)]
sys.path[:0] = FOLDERS
