"""Read OUTPUT.jsonl of exgrpo-eval generate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

NEEDED = {
    "benchmark": str,
    "question": int,
    "question_id": str,
    "sample": int,
    "response": str,
    "answer": str,
    "correct": bool,
}
KNOWN_OR_NOT = {
    "tokens": int,
    "finish_reason": str,
    "prompt": str,
}  # null where a graded file does not have them


def read(path: Path) -> list[dict[str, Any]]:
    """The graded rows.

    Raises:
        ValueError: the message names the file, and the line if there is one.
        OSError: there is no such file.
    """
    rows = []
    for number, row in enumerate(objects(path), 1):
        if fault := _fault(row):
            raise ValueError(f"{path}: line {number}: {fault}")
        rows.append(
            {
                "extracted": None,
                "vote": None,
                "timed_out": False,
                **dict.fromkeys(KNOWN_OR_NOT),
                **row,
            }
        )
    if not rows:
        raise ValueError(f"{path}: must hold at least one sample")
    return rows


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """The lines, each a JSON object; errors as `read`."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            yield _object(line, f"{path}: line {number}")


def record(path: Path) -> dict[str, Any]:
    """OUTPUT.run.json, which says how OUTPUT.jsonl was made; errors as `read`."""
    return _object(path.read_text(encoding="utf-8", errors="replace"), str(path))


def _object(text: str, named: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{named}: must be JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{named}: must be an object")
    return value


def cut_off(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of truncated responses among those whose finish reason is known; None if
    none is.
    """
    known = [row["finish_reason"] == "length" for row in rows if row["finish_reason"] is not None]
    return sum(known) / len(known) if known else None


def _fault(row: Mapping[str, Any]) -> str | None:
    if "correct" not in row:
        return "has no verdict; exgrpo-eval generate --force_generate False gives one"
    for key, kind in NEEDED.items():
        if not isinstance(row.get(key), kind):
            return f"{key}={row.get(key)!r}: must be of type {kind.__name__}"
    for key, kind in KNOWN_OR_NOT.items():
        if not isinstance(row.get(key), kind | None):
            return f"{key}={row[key]!r}: must be of type {kind.__name__}, or null"
    return None
