"""The question ids of verl data files, read without verl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exgrpo.experience.question_id import row_question_id


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
            "(the first: "
            f"row {twice}); data/prepare_train.py removes them"
        )
    return ids


def column_names(path: str) -> list[str]:
    """The names of a file's columns."""
    import pyarrow.json
    import pyarrow.parquet

    file = Path(path).expanduser()
    if file.suffix == ".parquet":
        return list(pyarrow.parquet.read_schema(file).names)
    return list(pyarrow.json.read_json(file).column_names)


def _columns(path: Path, prompt_key: str) -> tuple[list[Any], list[Any]]:
    import pyarrow.json
    import pyarrow.parquet

    if path.suffix == ".parquet":
        names = pyarrow.parquet.read_schema(path).names
        table = None
    else:
        table = pyarrow.json.read_json(path)
        names = table.column_names
    if prompt_key not in names:
        raise ValueError(
            f"{path}: no column {prompt_key!r} (data.prompt_key); it has {', '.join(names)}"
        )
    if table is None:
        columns = [name for name in (prompt_key, "extra_info") if name in names]
        table = pyarrow.parquet.read_table(path, columns=columns)
    extras = table["extra_info"].to_pylist() if "extra_info" in names else [None] * table.num_rows
    return table[prompt_key].to_pylist(), extras
