"""The data files, read without verl: their columns, the ids of their questions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from exgrpo.experience.question_id import row_question_id

_DEPTH = 100  # levels of a row
_NEITHER = bytes(set(range(256)) - set(b'"[]{}'))  # quote nor bracket
_STRINGS = re.compile(rb'"[^"]*"')


def is_local(path: str) -> bool:
    """Whether the path is on this machine; verl fetches remote ones."""
    return "://" not in path


def paths_of(value: Any) -> list[str]:
    """The files that a key names: one, or a list."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return [str(path) for path in value] if is_list else [str(value)]


def read_question_ids(files: Sequence[str], prompt_key: str = "prompt") -> list[str]:
    """The id of each row of the files, in their order.

    Raises:
        ValueError: no rows, a missing column, or a duplicate question: one id would then mean two
            rows.
    """
    ids = [each for path in files for each in _ids(Path(path).expanduser(), prompt_key)]
    if not ids:
        raise ValueError(f"data.train_files={list(files)}: no rows")
    if len(set(ids)) < len(ids):
        first_row = {question: row for row, question in reversed(list(enumerate(ids)))}
        twice = next(row for row, question in enumerate(ids) if first_row[question] < row)
        raise ValueError(
            f"data.train_files={list(files)}: {len(ids) - len(set(ids))} questions occur twice "
            f"(the first: row {twice}); exgrpo-data train removes them"
        )
    return ids


def _ids(path: Path, prompt_key: str) -> list[str]:
    table = read_columns(path, (prompt_key, "extra_info"))
    if prompt_key not in table.column_names:
        has = ", ".join(column_names(path))
        raise ValueError(f"{path}: no column {prompt_key!r} (data.prompt_key); it has {has}")
    rows = table.to_pylist()
    return [row_question_id(row.get("extra_info"), row[prompt_key]) for row in rows]


def golds_fingerprint(files: Sequence[str], prompt_key: str = "prompt") -> str:
    """SHA-256 of the rows' golds, each with its question's id, in any order."""
    columns = (prompt_key, "extra_info", "reward_model")
    rows = (row for path in files for row in read_columns(Path(path), columns).to_pylist())
    lines = sorted(
        json.dumps(
            [
                row_question_id(row.get("extra_info"), row[prompt_key]),
                (row.get("reward_model") or {}).get("ground_truth"),
            ],
            default=str,
        )
        for row in rows
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def column_names(path: Path) -> list[str]:
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_schema(path).names)
    return list(_read_json(path).column_names)


def read_columns(path: Path, columns: Iterable[str]) -> Any:
    """A table of those columns that the file has."""
    import pyarrow.parquet

    if path.suffix == ".parquet":
        names = pyarrow.parquet.read_schema(path).names
        return pyarrow.parquet.read_table(path, columns=[name for name in columns if name in names])
    table = _read_json(path)
    return table.select([name for name in columns if name in table.column_names])


def _read_json(path: Path) -> Any:
    """A stack overflow in pyarrow's parser, thousands of levels down, would end the process."""
    import pyarrow.json

    depth = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            # what is left of quotes begins or ends a string
            unescaped = line.replace(rb"\\", b"").replace(rb"\"", b"")
            for bracket in _STRINGS.sub(b"", unescaped.translate(None, _NEITHER)):
                depth += 1 if bracket in b"[{" else -1
                if depth > _DEPTH:
                    raise pyarrow.ArrowInvalid(f"line {number} nests more than {_DEPTH} levels")
    return pyarrow.json.read_json(path)


def is_prompt(value: Any) -> bool:
    """Whether it is a list of messages, as verl's rows have it."""
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    """Content is text, or a list of parts where the model sees images too."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return isinstance(value.get("content"), str | list)
