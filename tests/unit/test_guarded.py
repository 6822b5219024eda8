"""A guarded command: whatever way it ends, no process, temporary folder or semaphore of it
is left.
"""

import json
import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
import watched

import guard as guards
import process_tree
from run_record import RunRecord

GUARDED = str(Path(guards.__file__).parent)
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

# As Ray does: a worker in a process group of its own, an orphan, a semaphore, files below the
# temporary folder.
TREE = """
import json, multiprocessing, os, subprocess, sys, tempfile, time
semaphore = multiprocessing.get_context("spawn").Semaphore()
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
group = subprocess.Popen(sleep, process_group=0).pid
orphan = int(subprocess.check_output(
    [sys.executable, "-c", f"import subprocess; print(subprocess.Popen({sleep!r}, stdout=-3, process_group=0).pid)"]
))
logs = os.path.join(tempfile.gettempdir(), "ray", "session_1", "logs")
os.makedirs(logs)
open(os.path.join(logs, "raylet.out"), "w").write("what Ray said")
found = {"pids": [os.getpid(), group, orphan], "temporary": tempfile.gettempdir(),
         "semaphore": "/dev/shm/sem." + semaphore._semlock.name[1:]}
open(sys.argv[1] + ".tmp", "w").write(json.dumps(found))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
if sys.argv[2] == "sleep":
    time.sleep(600)
os._exit(int(sys.argv[2]))
"""  # noqa: E501


class Guarded:
    """A guard of this folder, with the tree that it has started."""

    def __init__(self, folder: Path, end="sleep", **options):
        self.folder, note = folder, folder.parent / f"{folder.name}.json"
        note.unlink(missing_ok=True)
        command = [sys.executable, "-c", TREE, str(note), end]
        self.process = subprocess.Popen([sys.executable, GUARDED, str(folder), *command], **options)
        watched.until(note.exists)
        found = json.loads(note.read_text())
        self.pids, self.temporary, self.semaphore = (
            found["pids"],
            Path(found["temporary"]),
            Path(found["semaphore"]),
        )

    def left(self):
        """What is there of it."""
        processes = [pid for pid in self.pids if process_tree.lives(pid)]
        files = (self.temporary, self.semaphore, self.folder / RunRecord.NAME)
        return processes, [path for path in files if path.exists()]


@pytest.fixture
def start(tmp_path):
    """Starts guards; what a failing test leaves of them is ended."""
    started = []

    def start(**options):
        started.append(Guarded(tmp_path / "run", **options))
        return started[-1]

    yield start
    for guard in started:
        for pid in [guard.process.pid, *guard.left()[0]]:
            if process_tree.lives(pid):
                os.kill(pid, signal.SIGKILL)
        guard.process.wait()
        guards.clear(guard.folder)


@pytest.fixture
def stranger():
    """A process in a session of its own that no guard has started."""
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it(start, number, capfd):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("ignored here, as under nohup, and by all that is started here")
    guard = start()
    assert len(guard.left()[0]) == 3 and len(guard.left()[1]) == 3
    guard.process.send_signal(number)
    assert guard.process.wait() == 128 + number
    assert guard.left() == ([], [])
    assert "stopped; the same command goes on" in capfd.readouterr().err


def test_what_a_finished_command_leaves_is_ended(start):
    guard = start(end="0")
    assert guard.process.wait() == 0
    assert guard.left() == ([], [])
    assert not (guard.folder / "ray-logs").exists()


def test_a_failed_command_s_logs_of_ray_are_kept(start):
    guard = start(end="3")
    assert guard.process.wait() == 3
    assert guard.left() == ([], [])
    assert (guard.folder / "ray-logs" / "raylet.out").read_text() == "what Ray said"


def test_a_killed_command_takes_the_rest_with_it(start):
    guard = start()
    os.kill(guard.pids[0], signal.SIGKILL)
    assert guard.process.wait() == 128 + signal.SIGKILL
    assert guard.left() == ([], [])
    assert (
        guard.folder / "ray-logs" / "raylet.out"
    ).exists()  # nobody has stopped it: they say why


def test_after_a_killed_guard_the_next_start_clears_up(start, stranger, capfd):
    guard = start()
    watched.until(lambda: str(guard.semaphore) in RunRecord.read(guard.folder).shared)
    guard.process.kill()
    guard.process.wait()
    watched.until(
        lambda: not process_tree.lives(guard.pids[0])
    )  # the command itself ends with its guard
    assert guard.left()[0] == guard.pids[1:]
    guards.clear(guard.folder)
    assert guard.left() == ([], [])
    assert "processes that a killed run" in capfd.readouterr().out
    assert stranger.poll() is None


def test_a_semaphore_is_removed_though_no_process_is_left(start):
    guard = start()
    watched.until(lambda: str(guard.semaphore) in RunRecord.read(guard.folder).shared)
    for pid in [guard.process.pid, *guard.pids]:
        os.kill(pid, signal.SIGKILL)
    guard.process.wait()
    watched.until(lambda: not guard.left()[0])
    guards.clear(guard.folder)
    assert guard.left() == ([], [])


def test_a_second_run_of_the_folder_is_refused(start, monkeypatch):
    monkeypatch.setattr(process_tree, "LIMIT_S", 0.2)
    guard = start()
    with pytest.raises(
        guards.StillRunning, match=f"a run is going on there \\(process {guard.process.pid}\\)"
    ):
        guards.clear(guard.folder)
    assert len(guard.left()[0]) == 3


def test_without_a_command_it_clears_up_or_says_who_is_at_work(start):
    guard = start()
    asked = [sys.executable, GUARDED, str(guard.folder)]
    done = subprocess.run(asked, capture_output=True, text=True)
    assert (
        done.returncode == 1
        and "a run is going on there" in done.stderr
        and len(guard.left()[0]) == 3
    )
    guard.process.kill()
    guard.process.wait()
    assert subprocess.run(asked).returncode == 0 and guard.left() == ([], [])


def test_an_ignored_hangup_stays_ignored(start):
    """As nohup has it."""
    guard = start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    guard.process.send_signal(signal.SIGHUP)
    guard.process.send_signal(signal.SIGTERM)
    assert guard.process.wait() == 128 + signal.SIGTERM


def test_a_number_that_belongs_to_somebody_else_by_now_is_left_alone(stranger):
    started = process_tree.look(stranger.pid).started
    assert process_tree.in_session(stranger.pid, started) == [stranger.pid]
    assert process_tree.in_session(stranger.pid, started - 1) == []


def test_a_record_of_another_start_of_the_machine_names_no_process(stranger, tmp_path):
    record = RunRecord.of_this_process(tmp_path)
    record.began(stranger.pid)
    assert record.guard_lives() and record.survivors() == [stranger.pid]
    record.machine = "before the reboot"
    assert not record.guard_lives() and record.survivors() == []


def test_shared_memory_that_others_use_is_left(tmp_path):
    ours = get_context("spawn").Semaphore()
    path = Path(f"/dev/shm/sem.{ours._semlock.name[1:]}")
    record = RunRecord.of_this_process(tmp_path)
    record.shared = {str(path)}
    record.remove(tmp_path)
    assert path.exists()


def test_a_torn_record_counts_as_none(tmp_path):
    (tmp_path / RunRecord.NAME).write_text('{"machine": ')
    guards.clear(tmp_path)


def test_a_long_path_for_temporary_files_is_not_taken(start, tmp_path):
    """Ray's sockets would not fit."""
    guard = start(env=os.environ | {"TMPDIR": str(tmp_path), "RAY_TMPDIR": str(tmp_path)})
    assert len(str(tmp_path)) > guards.LONGEST_TEMPORARY >= len(str(guard.temporary))
    assert not list(tmp_path.glob("xg-*"))


def test_no_folder_is_a_line():
    done = subprocess.run([sys.executable, GUARDED], capture_output=True, text=True)
    assert (
        done.returncode == 1
        and done.stderr == "exgrpo: usage: python exp_scripts/guarded DIR [command ...]\n"
    )


FIRST_THREAD_ENDS = """
import ctypes, subprocess, sys, threading, time
def wait():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    time.sleep(600)
threading.Thread(target=wait).start()
ctypes.CDLL(None).syscall(60, 0)  # exit of this thread alone, on x86-64
"""


def test_what_is_below_a_process_that_is_ending_is_found():
    """One whose first thread is a zombie: a kill makes this of every process of many threads, for a
    moment.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST_THREAD_ENDS], stdout=subprocess.PIPE, text=True
    )
    below = int(process.stdout.readline())
    watched.until(
        lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    )
    assert process_tree.lives(process.pid)
    assert {process.pid, below} <= set(process_tree.descendants(os.getpid()))
    assert process_tree.descendants(process.pid) == [below]
    for pid in (below, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    watched.until(lambda: not process_tree.lives(below))


# The command has ended, and nobody has asked for its code, before its guard goes on.
ENDS_AT_ONCE = """
import os, subprocess, sys
from pathlib import Path
import guard

class Ended(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

subprocess.Popen = Ended
sys.exit(guard.run(Path(sys.argv[1]), sys.argv[2:]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_ends_at_once_has_its_code(tmp_path, code):
    environment = os.environ | {"PYTHONPATH": GUARDED}
    command = [sys.executable, "-c", ENDS_AT_ONCE, str(tmp_path), "bash", "-c", f"exit {code}"]
    assert subprocess.run(command, env=environment, timeout=60).returncode == code
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_not_there_is_a_line(tmp_path):
    command = [sys.executable, GUARDED, str(tmp_path), "no-such-command"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        127,
        "exgrpo: no-such-command: No such file or directory\n",
    )
    assert list(tmp_path.iterdir()) == []
