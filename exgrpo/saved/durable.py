"""Atomic writes: beside the target, synced, then renamed; and locks for one writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
LOCK = ".exgrpo.lock"
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP)
logger = logging.getLogger(__name__)


def replace_file(path: Path, text: str, errors: str = "strict") -> None:
    """Write a text file: a kill at any moment leaves the old one or the new one.

    Args:
        errors: what happens to characters that UTF-8 cannot encode, as in `str.encode`.
    """
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors=errors)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        rename(temporary, path)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk names none
    finally:
        temporary.unlink(missing_ok=True)


def rename(temporary: Path, path: Path) -> None:
    """Give a complete file its name, in the same folder, once its content is on disk."""
    sync(temporary)
    os.replace(temporary, path)
    sync(path.absolute().parent)


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a sibling folder, then replace `folder` with it: one complete state can
    always be read.

    Raises:
        OSError: in one line; the previous folder is intact.
    """
    folder = folder.resolve()  # a linked folder is replaced where it is
    try:
        if not folder.parent.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            sync(folder.parent.parent)
        with exclusive(folder.parent):
            _replace(folder, fill)
    except OSError as error:
        why = error.strerror or error
        raise OSError(
            error.errno, f"{folder} could not be written ({why}); what was saved before is intact"
        ) from error


def _replace(folder: Path, fill: Callable[[Path], None]) -> None:
    finish_replacement(folder)
    fresh, previous = _sibling(folder, "tmp"), _sibling(folder, "previous")
    if fresh.exists():
        shutil.rmtree(fresh)  # left by a save that was killed
    fresh.mkdir()
    try:
        fill(fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)  # free the space: the disk may be full
        raise
    for path in (fresh, *fresh.rglob("*")):
        sync(path)
    if folder.exists():
        os.rename(folder, previous)
    os.rename(fresh, folder)
    sync(folder.parent)
    if previous.exists():
        shutil.rmtree(previous)


def finish_replacement(folder: Path) -> None:
    """Undo or complete a replacement that was killed between its two renames or after them.

    For a writer that holds the lock only; a reader asks `newest`.
    """
    folder = folder.resolve()
    previous = _sibling(folder, "previous")
    if previous.exists():
        if folder.exists():
            shutil.rmtree(previous)
        else:
            os.rename(previous, folder)


def newest(folder: Path) -> Path:
    """Where the newest whole state of a replaced folder is: between the two renames, beside it."""
    previous = _sibling(folder.resolve(), "previous")
    return previous if not folder.exists() and previous.exists() else folder


def steadily(folder: Path, read: Callable[[], T]) -> T:
    """The result of ``read()``, which reads `newest(folder)` and writes nothing.

    It is called again if it failed and a writer had replaced the folder meanwhile.

    Raises:
        OSError, ValueError: those of `read`, of a folder that nobody has replaced.
    """
    while True:
        before = _state(folder)
        try:
            return read()
        except (OSError, ValueError):
            if _state(folder) == before:
                raise


def _state(folder: Path) -> tuple[Path, int, int] | None:
    """Place, inode and time of the newest folder: the same while nobody replaces it."""
    there = newest(folder)
    try:
        found = there.stat()
    except FileNotFoundError:
        return None
    return there, found.st_ino, found.st_mtime_ns


def link(source: Path, target: Path) -> None:
    """Hard link; a copy where that is impossible."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target)


@contextlib.contextmanager
def exclusive(folder: Path, patience_s: float = 0) -> Iterator[None]:
    """Lock `folder` against every other writer on this host until the block or the process ends,
    even by a kill.

    Leaves no file behind. Does nothing on a file system without locks.

    Args:
        patience_s: seconds to wait for another writer that may be about to end.

    Raises:
        BlockingIOError: another process, or another part of this one, is writing there.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _locked(descriptor, patience_s) is False:
            raise BlockingIOError(errno.EAGAIN, f"another process is writing to {folder}")
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_on_all_hosts(folder: Path, patience_s: float = 0) -> Iterator[None]:
    """As `exclusive`, and also against other hosts that share `folder` on a network disk.

    The lock is on the file ``.exgrpo.lock`` in the folder, opened for writing: Linux's NFS client
    requests such a lock from the server, but keeps a lock on a folder local. The file names the
    holder; a leftover file locks nothing. A lock ends with its process, or, if the host crashed,
    when the server drops it (NFSv4: after its lease, 90 s by default; NFSv3: when that host is
    back). Mounts with ``nolock`` or ``local_lock`` have no locks between hosts.

    Raises:
        BlockingIOError: another process holds it; the message names its host, process and start.
    """
    path = folder / LOCK
    with path.open("a+", encoding="utf-8") as file:
        locked = _locked(file.fileno(), patience_s)
        if locked is False:
            # reopened: NFS then reads afresh
            holder = path.read_text(errors="replace").strip() or "not known yet"
            why = f"another process is writing to {folder} ({holder})"
            raise BlockingIOError(errno.EAGAIN, why)
        if locked is None:
            why = "a second run that writes there is not detected"
            logger.warning("%s is on a file system without locks: %s", folder, why)
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        file.truncate(0)
        file.write(f"host {socket.gethostname()}, process {os.getpid()}, since {since}\n")
        file.flush()
        os.fsync(file.fileno())
        yield


def _locked(descriptor: int, patience_s: float) -> bool | None:
    """Whether the lock was acquired in time; None if the file system has no locks."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError:
            return None  # for example NFS without a lock manager
        time.sleep(0.1)


def sync(path: Path) -> None:
    """Flush a file or folder to disk before anything else happens."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sibling(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")
