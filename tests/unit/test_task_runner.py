"""What the runner's process says."""

import subprocess
import sys

CODE = """
import logging
logging.basicConfig(level=logging.ERROR)  # as it is once vLLM is imported
from exgrpo.on_verl.task_runner import show_warnings
SHOW
logging.getLogger("exgrpo.mix_trainer_experience").warning("mixing begins")
logging.getLogger("elsewhere").warning("not ours")
"""


def said(show):
    code = CODE.replace("SHOW", show)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stderr


def test_warnings_of_ours_are_seen_once_where_libraries_allow_errors_alone():
    assert said("") == ""  # what it is for
    assert said("show_warnings()\nshow_warnings()").count("mixing begins") == 1
    assert "not ours" not in said("show_warnings()")
