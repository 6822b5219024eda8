"""Processes of this machine as /proc shows them: whose they are, what they share, and how all of a
tree is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 5.0  # within which a tree is gone
# of it, for Python's resource trackers to remove the semaphores of the processes that they served
TRACKER_S = 1.5
SHARED_MEMORY = Path("/dev/shm")
MAPPED = b" /dev/shm/"  # in a line of /proc/<pid>/maps, after the inode


class Process(NamedTuple):
    """A line of /proc/<pid>/stat. ``started``: clock ticks since the machine's start; ``ended``:
    waits to be reaped.
    """

    pid: int
    parent: int
    session: int
    started: int
    ended: bool


def look(pid: int) -> Process | None:
    """A process; None where there is none of this number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    threads = int(
        fields[17]
    )  # the first thread of a process is a zombie while others of it still end
    return Process(
        pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in "ZX" and threads <= 1
    )


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    found = look(pid)
    return found is not None and not found.ended


def everything() -> list[Process]:
    """All processes of this machine."""
    found = [look(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return [process for process in found if process]


def descendants(root: int) -> list[int]:
    """Process ids of those below a process, with the ended that nobody has reaped: others may still
    be below them.
    """
    children: dict[int, list[int]] = {}
    for process in everything():
        children.setdefault(process.parent, []).append(process.pid)
    found, open_ones = [], [root]
    while open_ones:
        below = children.get(open_ones.pop(), [])
        found += below
        open_ones += below
    return found


def in_session(session: int, started: int) -> list[int]:
    """Process ids of the living in the session that a process began at ``started``, itself
    included.
    """
    leader = look(session)
    if leader and leader.started != started:
        return []  # the number belongs to somebody else by now
    return [
        p.pid for p in everything() if p.session == session and p.started >= started and not p.ended
    ]


def shared_files(pids: Iterable[int]) -> set[str]:
    """Paths in shared memory that these processes have mapped: semaphores, blocks.

    By their inodes, because a semaphore's maker knows it by the name it had before it was linked to
    its own.
    """
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            before = Path(f"/proc/{pid}/maps").read_bytes().split(MAPPED)[:-1]
            inodes.update(int(text.rsplit(None, 1)[-1]) for text in before)
    with contextlib.suppress(FileNotFoundError):
        return {entry.path for entry in os.scandir(SHARED_MEMORY) if entry.inode() in inodes}
    return set()


def shared_memory_changed() -> int:
    """When a file came to or went from shared memory, in ns; 0 where there is none."""
    try:
        return SHARED_MEMORY.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def end(find: Callable[[], list[int]]) -> set[str]:
    """SIGKILL to what ``find`` gives until it gives nothing; the files in shared memory that these
    processes had.

    Says so in a line when LIMIT_S were not enough, as for a process that waits on a disk.
    """
    shared: set[str] = set()
    began = time.monotonic()
    while pids := find():
        shared |= shared_files(pids)
        passed = time.monotonic() - began
        for pid in pids:
            if passed > TRACKER_S or not _is_tracker(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        reap()
        if passed > LIMIT_S:
            print(
                f"exgrpo: not ended within {LIMIT_S:.0f} s: processes {pids}",
                file=sys.stderr,
                flush=True,
            )
            break
        time.sleep(0.02)
    return shared


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def reap() -> dict[int, int]:
    """Process id -> exit code (negative: the signal) of this process's children that have ended."""
    codes: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes
