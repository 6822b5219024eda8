"""Two hosts on one shared disk, played by two processes that see locks as two NFS clients of one
server do.
"""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

from exgrpo.saved import durable

# Linux's NFS client: flock on a file opened for writing is a byte-range lock at the server, which
# other hosts see; on a
# folder it is known to the own host alone. Byte-range locks of two processes of one machine meet in
# the same way.
NFS_CLIENT = """
import errno, fcntl, os, socket, stat, sys, time
from pathlib import Path

def flock(descriptor, operation):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        return
    if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR):
        raise OSError(errno.EBADF, "flock of a file on NFS that is not opened for writing")
    fcntl.lockf(descriptor, operation)

fcntl.flock, socket.gethostname = flock, lambda: sys.argv[1]
from exgrpo.saved import durable
"""
TAKE = """
try:
    with durable.{kind}(Path(sys.argv[2]), patience_s=0.3):
        print("holds", flush=True)
        time.sleep(float(sys.argv[3]))
except BlockingIOError as error:
    print(error.strerror, flush=True)
"""


def host(name, folder, seconds, kind="exclusive_on_all_hosts"):
    command = [
        sys.executable,
        "-c",
        NFS_CLIENT + TAKE.format(kind=kind),
        name,
        folder,
        str(seconds),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_the_second_host_is_refused_and_told_who_holds_the_folder(tmp_path):
    with host("gpu-a", tmp_path, 60) as first:
        assert first.stdout.readline() == "holds\n"
        with host("gpu-b", tmp_path, 0) as second:
            said = second.stdout.readline()
        assert (
            f"another process is writing to {tmp_path} (host gpu-a, process {first.pid}, since 20"
            in said
        )
        first.send_signal(signal.SIGKILL)
    with host(
        "gpu-b", tmp_path, 0
    ) as second:  # a killed holder's lock went with it; its file holds nothing
        assert second.stdout.readline() == "holds\n"
    assert [path.name for path in tmp_path.iterdir()] == [durable.LOCK]


def test_a_lock_on_the_folder_itself_would_not_do(tmp_path):
    """What is played is what NFS does: two hosts hold the same folder."""
    with (
        host("gpu-a", tmp_path, 60, "exclusive") as first,
        host("gpu-b", tmp_path, 0, "exclusive") as second,
    ):
        assert first.stdout.readline() == second.stdout.readline() == "holds\n"
        first.kill()


def test_the_same_process_is_refused_too_and_the_folder_is_free_afterwards(tmp_path):
    lock = durable.exclusive_on_all_hosts
    with (
        lock(tmp_path),
        pytest.raises(BlockingIOError, match=f"process {os.getpid()}"),
        lock(tmp_path),
    ):
        pass
    with lock(tmp_path):
        assert socket.gethostname() in (tmp_path / durable.LOCK).read_text()


def test_without_locks_a_warning_says_what_is_not_detected(tmp_path, monkeypatch, caplog):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with durable.exclusive_on_all_hosts(tmp_path), durable.exclusive_on_all_hosts(tmp_path):
        pass
    assert (
        "a file system without locks: a second run that writes there is not detected" in caplog.text
    )
