"""What several files of unit tests need."""

import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[2] / "exp_scripts" / "quickstart"


@pytest.fixture(scope="module")
def quickstart_on_path():
    """The quickstart's modules can be imported by their names, as its own scripts do."""
    sys.path.insert(0, str(QUICKSTART))
    yield
    sys.path.remove(str(QUICKSTART))
