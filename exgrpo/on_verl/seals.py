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
import re
import socket
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from exgrpo.saved import durable
from exgrpo.saved.pool_files import checksum_of

SEAL = "seal.json"
POOL = "experience"  # our folder in a checkpoint, besides verl's files
STATES_DELETED = "optimizer_states_deleted"  # a note: see old_checkpoints
_UNREAD = "huggingface"  # of verl's folders the one that no resume reads
_PARTS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}  # verl's names of files
_PART = re.compile(r"(model|optim|extra_state)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt")
_MAX_BYTES = 1 << 26  # of a seal
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


def check(
    folder: Path, step: int | None = None, contents: Collection[str] = tuple(_PARTS), nodes: int = 1
) -> Mapping[str, Any]:
    """The seal of a checkpoint whose files on this disk are as sealed; empty if it has none.

    Without a seal, as of an earlier version or where it was deleted, the weights' files are
    counted, and torch's files must be whole archives; their records are not read.

    Args:
        step: that the seal must be of.
        contents: verl's ``load_contents``: what the actor must have a file of for each rank.
        nodes: with several, each may have the files of its own ranks alone.

    Raises:
        DamagedCheckpoint: naming the first file that is damaged or missing.
    """
    if not (folder / SEAL).exists():
        _count(folder / "actor", contents, nodes)
        for path in _files(folder):
            if path.suffix == ".pt":
                _directory_at(path)
        return {}
    seal = _read(folder / SEAL)
    if step is not None and seal["step"] != step:
        raise DamagedCheckpoint(f"{folder / SEAL}: of step {seal['step']}, not {step}")
    with ThreadPoolExecutor(_THREADS) as pool:
        names, sums = seal["files"].keys(), seal["files"].values()
        differences = pool.map(_difference, [folder / name for name in names], sums)
        for name, difference in zip(names, differences, strict=True):
            if difference and _UNREAD in Path(name).parts:
                logger.warning("%s/%s %s; no resume reads it", folder, name, difference)
            elif difference:
                raise DamagedCheckpoint(f"{folder}: {name} {difference}")
    return seal


def run_of(folder: Path) -> str | None:
    """The id of the run that sealed a checkpoint; None if no seal says it."""
    try:
        return _read(folder / SEAL)["run"]
    except DamagedCheckpoint:
        return None


def _count(actor: Path, contents: Collection[str], nodes: int) -> None:
    """DamagedCheckpoint unless a folder has verl's files of every rank. No folder: other nodes'."""
    if not actor.is_dir() or (actor / "dist_ckpt").is_dir():
        return
    parts = [_PARTS[name] for name in _PARTS if name in contents]
    if (actor.parent / STATES_DELETED).exists():
        parts = [part for part in parts if part != "optim"]
    found: dict[int, dict[str, set[int]]] = {}
    for path in actor.iterdir():
        if match := _PART.fullmatch(path.name):
            ranks = found.setdefault(int(match[2]), {}).setdefault(match[1], set())
            ranks.add(int(match[3]))
    for size, ranks_of in found.items():
        wanted = set(range(size)) if nodes == 1 else ranks_of.get("model", set())
        if wanted and all(ranks_of.get(part) == wanted for part in parts):
            return
    raise DamagedCheckpoint(
        f"{actor}: without a seal, and not of every rank a file of {', '.join(parts)}"
    )


def _files(folder: Path) -> Iterator[Path]:
    """The files of a checkpoint, those in folders too, but for the pool's and temporary ones."""
    seen: set[str] = set()  # links are followed, each place once
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = sorted(name for name in folders if name != POOL and name[0] != ".")
        if real in seen:
            folders[:], names = [], []
        seen.add(real)
        yield from (Path(place, name) for name in sorted(names) if name[0] != ".")


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"of {path.stat().st_size} bytes")
        seal: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        checksum = seal.pop("checksum")
        is_whole = checksum == checksum_of(seal) and _is_seal(seal)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else error
        raise DamagedCheckpoint(f"{path} cannot be read ({said})") from error
    if not is_whole:
        raise DamagedCheckpoint(f"{path}: its checksum is another, or it is no seal")
    return seal


def _is_seal(seal: dict[str, Any]) -> bool:
    """Whether each value is of the type that `write` gives it, and each file is in the folder."""
    files, run = seal.get("files"), seal.get("run", 0)
    return (
        type(seal.get("step")) is int
        and (run is None or isinstance(run, str))
        and isinstance(files, dict)
        and all(
            isinstance(sums, list) and [type(each) for each in sums] == [int, int]
            for sums in files.values()
        )
        and not any(Path(name).is_absolute() or ".." in Path(name).parts for name in files)
    )


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
