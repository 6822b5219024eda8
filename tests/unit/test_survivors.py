"""A suite that is killed leaves nothing running, whatever session its processes are in."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
from watched import Watch

TESTS = Path(__file__).parents[1]
SUITE = """
    import os, subprocess, sys, time
    import survivors

    with survivors.none_left():
        started = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(started.pid, flush=True)
        {end}
"""


def suite(end: str) -> tuple[subprocess.Popen, psutil.Process]:
    """A process with a watcher that has started another one in a session of its own."""
    code = textwrap.dedent(SUITE).format(end=end)
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, psutil.Process(int(process.stdout.readline()))


def test_what_a_killed_suite_has_started_is_killed():
    process, started = suite("time.sleep(600)")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    Watch(None).until(lambda: not started.is_running() or started.status() == psutil.STATUS_ZOMBIE)


def test_a_suite_that_ends_leaves_its_processes_to_its_tests():
    process, started = suite("pass")
    assert process.wait() == 0 and started.is_running()
    started.kill()
