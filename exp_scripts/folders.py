"""Puts the folders of quickstart and loops on the import path: a script that is started sees its own alone."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "quickstart")]
