"""The seal of a checkpoint: what its files were when it was complete, so that damage is noticed
before Ray starts.

``seal.json`` in ``global_step_<n>/`` is written last: step, run, host, and for each file its size
and a CRC-32. torch's files are zip archives that hold the CRC-32 of every record, so that their
directory is sealed, which takes no time, and their records are compared with it at a resume. Not
in it: the pool, which has its own manifest, and the files on other nodes' disks.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from exgrpo.saved import durable
from exgrpo.saved.pool_files import checksum_of

SEAL = "seal.json"
POOL = "experience"  # our folder in a checkpoint, besides verl's files
STATES_DELETED = "optimizer_states_deleted"  # a note: see old_checkpoints
_UNREAD = "huggingface"  # of verl's folders the one that no resume reads
_CHUNK = 1 << 24
_THREADS = 8
logger = logging.getLogger(__name__)


class DamagedCheckpoint(ValueError):
    """A file of a checkpoint is not what it was when the checkpoint was complete."""


def write(folder: Path, step: int, run: str | None) -> None:
    """Seal a complete checkpoint; `run` is the id of the run that its pool names."""
    paths = [path for path in _files(folder) if path.name not in (SEAL, STATES_DELETED)]
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = list(pool.map(_size_and_crc, paths))
    names = [path.relative_to(folder).as_posix() for path in paths]
    seal: dict[str, Any] = {"step": step, "run": run, "host": socket.gethostname()}
    seal["files"] = dict(zip(names, sums, strict=True))
    text = json.dumps(seal | {"checksum": checksum_of(seal)}, indent=1, sort_keys=True)
    durable.replace_file(folder / SEAL, text + "\n")


def check(folder: Path) -> Mapping[str, Any]:
    """The seal of a checkpoint whose files on this disk are as sealed; empty if it has none.

    Without a seal, as of an earlier version, torch's files must be whole archives; their records
    are not read.

    Raises:
        DamagedCheckpoint: naming the first file that is damaged.
    """
    if not (folder / SEAL).exists():
        for path in _files(folder):
            if path.suffix == ".pt":
                _directory_at(path)
        return {}
    seal = _read(folder / SEAL)
    with ThreadPoolExecutor(_THREADS) as pool:
        names, sums = seal["files"].keys(), seal["files"].values()
        differences = pool.map(_difference, [folder / name for name in names], sums)
        for name, difference in zip(names, differences, strict=True):
            if difference and _UNREAD in Path(name).parts:
                logger.warning("%s/%s %s; no resume reads it", folder, name, difference)
            elif difference:
                raise DamagedCheckpoint(f"{folder}: {name} {difference}")
    return seal


def _files(folder: Path) -> Iterator[Path]:
    """The files of a checkpoint, those in folders too, but for the pool's and temporary ones."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != POOL and name[0] != ".")
        yield from (Path(place, name) for name in sorted(names) if name[0] != ".")


def _read(path: Path) -> dict[str, Any]:
    try:
        seal: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        checksum = seal.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({error})") from error
    if checksum != checksum_of(seal) or "files" not in seal:
        raise DamagedCheckpoint(f"{path}: its checksum is another, or it is no seal")
    return seal


def _difference(path: Path, sealed: list[int]) -> str:
    """What is wrong with a file, as the rest of a sentence; empty if it is as it was sealed."""
    if not path.is_file():
        gone = path.name.startswith("optim_") and (path.parents[1] / STATES_DELETED).exists()
        return "" if gone else "is missing"
    if path.stat().st_size != sealed[0]:
        return f"has {path.stat().st_size} bytes, {sealed[0]} were sealed"
    try:
        if _size_and_crc(path) != sealed:
            return "is not what was sealed: its CRC-32 is another"
        if _is_archive(path):
            with zipfile.ZipFile(path) as archive:
                if record := archive.testzip():
                    return f"is damaged in its record {record}"
    except (DamagedCheckpoint, OSError, ValueError, EOFError, RuntimeError) as error:
        return f"cannot be read ({error})"
    return ""


def _size_and_crc(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file, of an archive that of its directory, which is at its end."""
    crc = 0
    with path.open("rb") as file:
        file.seek(_directory_at(path) if _is_archive(path) else 0)
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return [path.stat().st_size, crc]


def _is_archive(path: Path) -> bool:
    return path.suffix == ".pt" and zipfile.is_zipfile(path)


def _directory_at(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise DamagedCheckpoint(f"{path} is no whole archive of torch ({error})") from error
