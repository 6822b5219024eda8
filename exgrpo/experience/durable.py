"""Files that are whole or absent: written beside their target, synced, then renamed; and one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a small text file: a kill at any moment leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a sibling folder, then put it in `folder`'s place: there is always one whole state to read.

    Raises:
        OSError: in one line; what stood there before is intact.
    """
    folder = folder.absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(folder.parent):
            _replace(folder, fill)
    except OSError as error:
        why = error.strerror or error
        raise OSError(error.errno, f"{folder} could not be written ({why}); what was saved before is intact") from error


def _replace(folder: Path, fill: Callable[[Path], None]) -> None:
    finish_replacement(folder)
    fresh, previous = _sibling(folder, "tmp"), _sibling(folder, "previous")
    if fresh.exists():
        shutil.rmtree(fresh)  # left by a save that was killed
    fresh.mkdir()
    try:
        fill(fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)  # a full disk is given its space back
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
    """Undo or complete a replacement that was killed between its two renames or after them."""
    folder = folder.absolute()
    previous = _sibling(folder, "previous")
    if previous.exists():
        if folder.exists():
            shutil.rmtree(previous)
        else:
            os.rename(previous, folder)


def link(source: Path, target: Path) -> None:
    """Hard link, or a copy where the file system has no such thing or the two are on different ones."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES):
            raise
        shutil.copyfile(source, target)


@contextlib.contextmanager
def exclusive(folder: Path, patience_s: float = 0) -> Iterator[None]:
    """Hold `folder` against every other writer, until the block or the process ends, however that happens.

    Where the file system has no locks there is none.

    Args:
        patience_s: seconds to wait for the other writer, which may be about to end.

    Raises:
        BlockingIOError: another process, or another part of this one, is writing there.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + patience_s
    try:
        while not _lock(descriptor):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EAGAIN, f"another process is writing to {folder}")
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # NFS without a lock manager, and the like
    return True


def sync(path: Path) -> None:
    """Have a file or folder reach the disk before what comes next."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sibling(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")
