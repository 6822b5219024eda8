"""Names that moved, kept for one version."""

import subprocess
import sys

OLD = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from exgrpo.replay import TrajectoryBuffer
    from exgrpo.replay.policies import CausalPolicy
    from exgrpo.replay.strategies import NothingLeft
import exgrpo
from exgrpo.buffer import strategies
assert TrajectoryBuffer is exgrpo.TrajectoryBuffer and NothingLeft is strategies.NothingLeft and CausalPolicy
print(*(f"{each.category.__name__} {each.filename}: {each.message}" for each in said), sep=chr(10))
"""  # noqa: E501


def test_the_buffer_is_there_by_its_old_name_with_one_warning():
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    now = "exgrpo.replay is exgrpo.buffer now; the old name goes with the next version"
    assert done.stdout == f"DeprecationWarning <string>: {now}\n"
