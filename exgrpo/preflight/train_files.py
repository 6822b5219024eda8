"""The question ids of verl data files, read without verl."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from exgrpo.experience.question_id import row_question_id

_DEPTH = 100  # levels of a row
_STRINGS, _BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"'), re.compile(rb"[\[\]{}]")


def is_local(path: str) -> bool:
    """Whether the path is on this machine; verl fetches remote ones."""
    return "://" not in path


def read_question_ids(files: Sequence[str], prompt_key: str = "prompt") -> list[str]:
    """The id of each row of the files, in their order.

    Raises:
        ValueError: no rows, a missing column, or a duplicate question: one id would then mean two
            rows.
    """
    ids: list[str] = []
    for path in files:
        prompts, extras = _columns(Path(path).expanduser(), prompt_key)
        ids += [
            row_question_id(extra, prompt) for prompt, extra in zip(prompts, extras, strict=True)
        ]
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


def column_names(path: str) -> list[str]:
    """The names of a file's columns."""
    import pyarrow.parquet

    file = Path(path).expanduser()
    if file.suffix == ".parquet":
        return list(pyarrow.parquet.read_schema(file).names)
    return list(_read_json(file).column_names)


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
            for bracket in _BRACKETS.findall(_STRINGS.sub(b"", line)):
                depth += 1 if bracket in b"[{" else -1
                if depth > _DEPTH:
                    raise pyarrow.ArrowInvalid(f"line {number} nests more than {_DEPTH} levels")
    return pyarrow.json.read_json(path)


def _columns(path: Path, prompt_key: str) -> tuple[list[Any], list[Any]]:
    table = read_columns(path, (prompt_key, "extra_info"))
    if prompt_key not in table.column_names:
        has = ", ".join(column_names(str(path)))
        raise ValueError(f"{path}: no column {prompt_key!r} (data.prompt_key); it has {has}")
    has_extra = "extra_info" in table.column_names
    extras = table["extra_info"].to_pylist() if has_extra else [None] * table.num_rows
    return table[prompt_key].to_pylist(), extras
