"""Whatever system call a checkpoint is killed at, the run resumes to one of the two neighbouring
checkpoints.
"""

import platform
import re
import sys
from pathlib import Path

import pytest
import watched


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="system calls are followed by their x86-64 numbers"
)
def test_every_cut_point_resumes(capsys):
    script = Path(__file__).with_name("crash_sweep.py")
    result = watched.run([sys.executable, script])
    if "ptrace may be forbidden here" in result.stderr:
        pytest.skip("ptrace is forbidden here")
    assert result.returncode == 0, result.stdout + result.stderr
    with capsys.disabled():
        print("\n" + result.stdout.strip())
    done, of = map(int, re.findall(r"(\d+) of (\d+) cut points resume to one of", result.stdout)[0])
    assert done == of > 500
