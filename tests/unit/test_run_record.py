"""What a guarded run has written down of itself, read once the run was killed: whose numbers and memory they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exgrpo import guarded
from exgrpo.guarded import process_tree
from exgrpo.guarded.run_record import RunRecord

SLEEP = "import time; time.sleep(600)"
# as a worker that nobody serves any more: it has mapped a file in shared memory
HOLDS = f"""
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("holds", flush=True)
{SLEEP}
"""


@pytest.fixture
def start():
    """Starts Python in a session of its own; what is left of it is ended."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-c", *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_memory_that_was_shared_since_the_guards_last_look_is_removed(start, tmp_path):
    shared = Path(f"/dev/shm/exgrpo-test-{os.getpid()}")
    shared.write_text("held")
    try:
        left = start(HOLDS, str(shared))
        assert left.stdout.readline() == b"holds\n"
        record = RunRecord.of_this_process(tmp_path / "temporary")
        record.began(left.pid)
        record.started -= 1  # its guard is gone
        record.write(tmp_path)
        guarded.clear(tmp_path)
        assert not process_tree.lives(left.pid) and not shared.exists()
    finally:
        shared.unlink(missing_ok=True)


def test_a_guard_whose_number_belongs_to_somebody_else_by_now_has_ended(start, tmp_path):
    stranger = start(SLEEP)
    record = RunRecord.of_this_process(tmp_path / "temporary")
    record.guard = stranger.pid
    record.write(tmp_path)
    guarded.clear(tmp_path)
    assert list(tmp_path.iterdir()) == [] and process_tree.lives(stranger.pid)


IN_ANOTHER_CONTAINER = """
import os, sys; from pathlib import Path; from exgrpo.guarded.run_record import RunRecord
record = RunRecord.of_this_process(Path(sys.argv[1], "temporary"))
record.began(os.getpid())
record.write(Path(sys.argv[1]))
"""


def test_a_record_of_another_container_on_this_machine_names_no_process(tmp_path):
    apart = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no processes with numbers of their own may be made here")
    subprocess.run([*apart, sys.executable, "-c", IN_ANOTHER_CONTAINER, str(tmp_path)], check=True)
    record, ours = RunRecord.read(tmp_path), RunRecord.of_this_process(tmp_path / "temporary")
    ours.began(os.getpid())
    assert record.guard == 1 and ours.guard_lives()
    record.guard, record.started = ours.guard, ours.started
    record.session, record.session_started = ours.session, ours.session_started
    assert not record.guard_lives() and record.survivors() == []
