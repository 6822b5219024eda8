"""Puts the checkout's root on the import path: for a script of this folder that is started by its path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
