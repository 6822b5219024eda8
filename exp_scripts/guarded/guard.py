"""Runs a command on this machine so that nothing of it is left behind: ``python exp_scripts/guarded
DIR command ...``

For a training that starts its own Ray: most of Ray's processes are not children of the driver, and
a driver that is killed leaves sockets, semaphores, a session folder and, for a while, processes.
This process adopts whatever the command starts (PR_SET_CHILD_SUBREAPER) and gives it a temporary
folder of its own. When the command ends, or at SIGINT, SIGTERM or SIGHUP, all of it is ended and
removed; should this process itself be killed, by the next one for the same DIR, which reads
DIR/running.json. A Ray cluster that runs already is not touched; RAY_ADDRESS lets it be joined.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import process_tree
from run_record import RunRecord

LOOK_S = 2.0  # between two looks at shared memory
LONGEST_TEMPORARY = (
    35  # characters of a path below which Ray's sockets fit into the 107 bytes that Linux allows
)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class StillRunning(RuntimeError):
    """A guarded command of the same folder is alive."""


def run(folder: Path, command: list[str]) -> int:
    """Run the command to its end or until a signal; the exit code.

    Raises:
        StillRunning: another guarded command of this folder is alive.
    """
    stopping = {
        s
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(s) != signal.SIG_IGN
    }
    signal.pthread_sigmask(
        signal.SIG_BLOCK, stopping | {signal.SIGCHLD}
    )  # they wait for sigtimedwait
    folder.mkdir(parents=True, exist_ok=True)
    clear(folder)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    temporary = _temporary_folder()
    record = RunRecord.of_this_process(temporary)
    record.write(folder)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder / "ray-logs")
    try:
        child = _start(command, temporary, stopping | {signal.SIGCHLD})
    except OSError as error:
        record.remove(folder)
        print(f"exgrpo: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    record.began(child.pid)
    record.write(folder)
    code = child.returncode = _wait(child.pid, record, folder, stopping)
    record.shared |= process_tree.end(
        lambda: [*process_tree.descendants(os.getpid()), *record.survivors()]
    )
    stopped = code > 128 and code - 128 in stopping
    if code and not stopped:
        _keep_logs(temporary, folder / "ray-logs")
    record.remove(folder)
    return code


def clear(folder: Path) -> None:
    """End and remove what a killed run of this folder left; nothing where it left nothing.

    Raises:
        StillRunning: the run is alive, and not about to end.
    """
    record = RunRecord.read(folder)
    deadline = (
        time.monotonic() + process_tree.LIMIT_S
    )  # a guard whose parent has just been killed is still at work
    while record and record.guard_lives():
        if time.monotonic() > deadline:
            raise StillRunning(
                f"{folder}: a run is going on there (process {record.guard}); stop it first"
            )
        time.sleep(0.1)
        record = RunRecord.read(folder)
    if record is None:
        return
    left = record.survivors()
    if left:
        print(
            f"exgrpo: ending {len(left)} processes that a killed run of {folder} left", flush=True
        )
    record.shared |= process_tree.end(record.survivors)
    record.remove(folder)


def _wait(child: int, record: RunRecord, folder: Path, stopping: set[signal.Signals]) -> int:
    """Wait for the child's end or a signal, and note meanwhile which files in shared memory are
    this tree's.
    """
    looked = 0
    while True:
        got = signal.sigtimedwait(stopping | {signal.SIGCHLD}, LOOK_S)
        if got is not None and got.si_signo != signal.SIGCHLD:
            print(
                "exgrpo: stopped; the same command goes on from the last checkpoint, if any",
                file=sys.stderr,
                flush=True,
            )
            return 128 + got.si_signo
        codes = process_tree.reap()
        if child in codes:
            return codes[child] if codes[child] >= 0 else 128 - codes[child]
        changed = process_tree.shared_memory_changed()
        if changed != looked:
            looked = changed
            found = process_tree.shared_files(process_tree.descendants(os.getpid()))
            if not found <= record.shared:
                record.shared |= found
                record.write(folder)


def _start(
    command: list[str], temporary: Path, blocked: set[signal.Signals]
) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own. It ends with this process, even with a killed one.

    The caller holds on to what is returned: a Popen that nobody has reaps its child, whose code is
    then lost.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)},
        start_new_session=True,
        preexec_fn=partial(_before_exec, blocked),
    )


def _before_exec(blocked: set[signal.Signals]) -> None:
    ctypes.CDLL(None).prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL
    )  # Ray's own processes end with the driver
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)


def _temporary_folder() -> Path:
    """A new folder with a short path: Ray refuses to put its sockets under a long one."""
    base = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    made = Path(tempfile.mkdtemp(prefix="xg-", dir=base))
    if len(str(made)) <= LONGEST_TEMPORARY:
        return made
    made.rmdir()
    return Path(tempfile.mkdtemp(prefix="xg-", dir="/tmp"))


def _keep_logs(temporary: Path, kept: Path) -> None:
    """Ray's logs of a run that failed, beside the run."""
    for logs in glob.glob(f"{temporary}/ray/session_[0-9]*/logs"):
        shutil.copytree(logs, kept, dirs_exist_ok=True, ignore_dangling_symlinks=True)
