"""What a guarded run has written down of itself, read once the run was killed: whose numbers and
memory they are.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import guard
import process_tree
from run_record import RunRecord

SLEEP = "import time; time.sleep(600)"
# as a worker that nobody serves any more: it has mapped a file in shared memory
HOLDS = f"""
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("holds", flush=True)
{SLEEP}
"""


def record_of(folder):
    """Of this process, with a temporary folder below that one."""
    (folder / "temporary").mkdir(exist_ok=True)
    return RunRecord.of_this_process(folder / "temporary")


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
        record = record_of(tmp_path)
        record.began(left.pid)
        record.started -= 1  # its guard is gone
        record.write(tmp_path)
        guard.clear(tmp_path)
        assert not process_tree.lives(left.pid) and not shared.exists()
    finally:
        shared.unlink(missing_ok=True)


def test_a_guard_whose_number_belongs_to_somebody_else_by_now_has_ended(start, tmp_path):
    stranger = start(SLEEP)
    record = record_of(tmp_path)
    record.guard = stranger.pid
    record.mark()
    record.write(tmp_path)
    guard.clear(tmp_path)
    assert list(tmp_path.iterdir()) == [] and process_tree.lives(stranger.pid)


IN_ANOTHER_CONTAINER = """
import os, sys; from pathlib import Path; from run_record import RunRecord
temporary = Path(sys.argv[1], "temporary")
temporary.mkdir()
record = RunRecord.of_this_process(temporary)
record.began(os.getpid())
record.write(Path(sys.argv[1]))
"""


def test_a_record_of_another_container_on_this_machine_names_no_process(tmp_path):
    apart = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no processes with numbers of their own may be made here")
    environment = os.environ | {"PYTHONPATH": str(Path(guard.__file__).parent)}
    command = [*apart, sys.executable, "-c", IN_ANOTHER_CONTAINER, str(tmp_path)]
    subprocess.run(command, env=environment, check=True)
    record, ours = RunRecord.read(tmp_path), record_of(tmp_path)
    ours.began(os.getpid())
    assert record.guard == 1 and ours.guard_lives()
    record.guard, record.started = ours.guard, ours.started
    record.session, record.session_started = ours.session, ours.session_started
    assert not record.guard_lives() and record.survivors() == []


def test_what_a_record_names_and_its_run_has_not_made_is_left(tmp_path, capfd):
    """A record that was copied, damaged or written by somebody else."""
    run, mine, other = tmp_path / "run", tmp_path / "mine", tmp_path / "other"
    for folder in (run, mine, other):
        folder.mkdir()
        (folder / "work.txt").write_text("weeks of it")
    record = record_of(tmp_path)
    record.started -= 1  # its guard is gone
    record.shared = {str(other / "work.txt"), "/dev/shm/../.." + str(mine / "work.txt")}
    for temporary in (mine, tmp_path / "temporary", tmp_path / "link"):
        record.temporary = str(temporary)
        if temporary.name == "link":
            temporary.symlink_to(mine)
        record.write(run)
        guard.clear(run)
        assert temporary.exists() and sorted(path.name for path in run.iterdir()) == ["work.txt"]
        said = capfd.readouterr().err.splitlines()
        assert (
            f"exgrpo: {run}/running.json names {temporary}, which its run has not made: "
            "left as it is" in said
        )
        assert len(said) == 3 and all((folder / "work.txt").exists() for folder in (mine, other))


def test_the_temporary_folder_that_a_run_has_made_is_removed(tmp_path):
    record = record_of(tmp_path)
    record.write(tmp_path)
    record.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{}", "[]", "5", '{"machine": "m"}'])
def test_a_record_without_its_values_counts_as_none(tmp_path, text):
    (tmp_path / RunRecord.NAME).write_text(text)
    guard.clear(tmp_path)
    assert RunRecord.read(tmp_path) is None
