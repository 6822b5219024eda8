"""OUTPUT.partial: the samples of an unfinished run, one line each, appended as they finish."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eval.generation import Key


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a row's sample."""
    return (row["benchmark"], row["question"], row["sample"])


def differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """The differing settings of two runs, with both values, in one line; empty if there are none."""
    now, then = _flat(now), _flat(then)
    keys = [*now, *(key for key in then if key not in now)]
    return "; ".join(f"{key}={now.get(key)}, was {then.get(key)}" for key in keys if now.get(key) != then.get(key))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the items of nested mappings on the top level."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= value if isinstance(value, Mapping) else {key: value}
    return flat


class PartialFile:
    """Open for one process at a time; a context manager.

    The first line has the settings that the responses depend on, the others one row each. A last line that a kill left
    incomplete is removed; nothing else is ever rewritten.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        """Open, or create, the file of a run with these settings.

        Args:
            settings: JSON values.
            restart: discard its content.

        Raises:
            ValueError: it belongs to a run with other settings; the message names the differences.
            OSError: it cannot be written, or another run is writing it.
        """
        self.path = path
        self.rows: dict[Key, dict[str, Any]] = {}
        self._seconds: dict[int, float] = {}
        self._began = time.monotonic()
        self._file = path.open("a+b")
        try:
            self._open(settings, restart)
        except BaseException:
            self._file.close()
            raise

    def _open(self, settings: Mapping[str, Any], restart: bool) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(f"{self.path}: another run is writing it") from error
        if restart:
            self._file.truncate(0)
        header, self._session = self._read()
        if header is None or not self.rows:
            self._file.truncate(0)
            header = {"settings": dict(settings), "started": datetime.now(UTC).isoformat(timespec="seconds")}
            self._append([header])
        self.started: str = header["started"]
        if other := differences(settings, header["settings"]):
            raise ValueError(f"{self.path}: of a run with other settings ({other}); --restart discards it")

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def seconds(self) -> float:
        """Generation time of all sessions, each up to its last finished sample."""
        return sum(self._seconds.values())

    def begin(self) -> None:
        """Count a session's time from here: once the model is loaded."""
        self._began = time.monotonic()

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append finished samples; when this returns they survive a kill of the process."""
        seconds = round(time.monotonic() - self._began, 3)
        self._seconds[self._session] = seconds
        self._append([{"row": row, "session": self._session, "seconds": seconds} for row in rows])
        self.rows.update((key_of(row), row) for row in rows)

    def _append(self, entries: Sequence[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        self._file.write(lines.encode(errors="replace"))
        self._file.flush()

    def _read(self) -> tuple[dict[str, Any] | None, int]:
        """Read all rows and remove an incomplete last line; returns the first line and this session's number."""
        self._file.seek(0)
        header, end = None, 0
        for line in self._file:
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                entry = None
            if entry is None:
                break
            if header is None:
                header = entry
            else:
                self.rows[key_of(entry["row"])] = entry["row"]
                self._seconds[entry["session"]] = entry["seconds"]
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)
        return header, max(self._seconds, default=-1) + 1
