"""OUTPUT.partial: the samples of an unfinished run, one line each, appended as they finish."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exgrpo_eval.generate.generation import Key

# What a row is read for, here and after the run, with its type: eval/generate/generation.py writes
# it.
ROW_KEYS = {
    "benchmark": str,
    "question": int,
    "sample": int,
    "question_id": str,
    "response": str,
    "tokens": int,
    "finish_reason": str,
    "answer": str,
    "prompt": str,
    "input_file": str,
}


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a row's sample."""
    return (row["benchmark"], row["question"], row["sample"])


def differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """The differing settings of two runs, with both values, in one line; empty if there are
    none.
    """
    now, then = _flat(now), _flat(then)
    keys = [*now, *(key for key in then if key not in now)]
    return "; ".join(
        f"{key}={now.get(key)}, was {then.get(key)}"
        for key in keys
        if now.get(key) != then.get(key)
    )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the items of nested mappings on the top level."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= value if isinstance(value, Mapping) else {key: value}
    return flat


class PartialFile:
    """Open for one process at a time; a context manager.

    The first line has the settings that the responses depend on, the others one row each. A last
    line that a kill left incomplete is removed; nothing else is ever rewritten: a line that cannot
    be read stays where it is and is passed over, and a line of print names it.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        """Open, or create, the file of a run with these settings.

        Args:
            settings: JSON values.
            restart: discard its content.

        Raises:
            ValueError: it belongs to a run with other settings; the message names the differences.
                Or its first line cannot be read, and others follow.
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
        lines = self._whole_lines()
        header = _header(lines[0]) if lines else None
        if len(lines) > 1 and header is None:
            raise ValueError(
                f"{self.path}: its line 1, with the run's settings, cannot be read, and "
                f"{len(lines) - 1} lines follow; --restart discards them"
            )
        self._session = self._read(lines[1:])
        if header is None or len(lines) == 1:
            self._file.truncate(0)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            header = {"settings": dict(settings), "started": now}
            self._append([header])
        self.started: str = header["started"]
        if other := differences(settings, header["settings"]):
            raise ValueError(
                f"{self.path}: of a run with other settings ({other}); --restart discards it"
            )

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

    def _whole_lines(self) -> list[bytes]:
        """All lines; an incomplete last one is removed from the file."""
        self._file.seek(0)
        lines = list(self._file)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        self._file.truncate(sum(map(len, lines)))
        return lines

    def _read(self, lines: Sequence[bytes]) -> int:
        """Read the rows; returns this session's number."""
        unread = []
        for number, line in enumerate(lines, start=2):
            if (entry := _entry(line)) is None:
                unread.append(str(number))
                continue
            self.rows[key_of(entry["row"])] = entry["row"]
            self._seconds[entry["session"]] = entry["seconds"]
        if unread:
            named = ", ".join(unread[:5]) + ("" if len(unread) <= 5 else ", ...")
            print(
                f"{self.path}: {len(unread)} of {len(lines)} rows cannot be read (line {named}); "
                "they stay in the file, and their samples are generated again",
                flush=True,
            )
        return max(self._seconds, default=-1) + 1


def _json_object(line: bytes) -> dict[str, Any] | None:
    """The line's JSON object; None if it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _header(line: bytes) -> dict[str, Any] | None:
    """The first line's settings and start; None if it has none."""
    header = _json_object(line) or {}
    whole = isinstance(header.get("settings"), dict) and isinstance(header.get("started"), str)
    return header if whole else None


def _entry(line: bytes) -> dict[str, Any] | None:
    """A row with its session and seconds; None if the line is not one that `add` writes."""
    entry = _json_object(line) or {}
    row = entry.get("row")
    whole = (
        isinstance(row, dict)
        and all(isinstance(row.get(key), kind) for key, kind in ROW_KEYS.items())
        and isinstance(entry.get("session"), int)
        and isinstance(entry.get("seconds"), int | float)
    )
    return entry if whole else None
