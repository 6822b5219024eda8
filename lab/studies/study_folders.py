"""Puts the folders that the studies use on the import path: a script that is started by its path sees its own alone."""

import sys
from pathlib import Path

STUDIES = Path(__file__).resolve().parent
LAB, ROOT = STUDIES.parents[:2]
RUNS, BASES, RULES = LAB / "runs", LAB / "bases", LAB / "rules.py"
PICTURES = ROOT / "docs" / "experiments"  # the two that a page of the documentation shows
SCRIPTS = ROOT / "exp_scripts"
FOLDERS = [str(STUDIES), str(LAB), str(SCRIPTS), str(SCRIPTS / "quickstart"), str(ROOT)]
sys.path[:0] = FOLDERS
