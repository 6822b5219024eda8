"""The training and evaluation files, read without verl: the ids of their questions, and whether
their rows are in verl's format (docs/your-own-data.md), which verl finds out in its first step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exgrpo.experience.question_id import row_question_id

if TYPE_CHECKING:
    from omegaconf import DictConfig

_DEPTH = 100  # levels of a row
_NEITHER = bytes(set(range(256)) - set(b'"[]{}'))  # quote nor bracket
_STRINGS = re.compile(rb'"[^"]*"')
_MESSAGES = "a list of messages, {role: text, content: text} each"
_GROUND_TRUTH = "a dictionary with ground_truth, which the reward is handed"


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


def verify_rows(config: DictConfig) -> None:
    """ValueError with a line for each file: its first wrong row, the column, what is allowed."""
    judged = config.reward.reward_manager.source == "register"  # each of verl's own reads these two
    wrong: dict[str, str] = {}  # one file may be given for both
    for key in ("train_files", "val_files"):
        if not (paths := paths_of(config.data[key])):
            wrong[key] = f"data.{key}=[]: must be at least one file"
        for path in filter(is_local, paths):
            error = _wrong_row(Path(path), config.data.prompt_key, judged)
            if error is not None:
                wrong.setdefault(path, f"data.{key}={path}: {error}")
    if wrong:
        raise ValueError("\n".join(wrong.values()))


def _wrong_row(path: Path, prompt_key: str, judged: bool) -> str | None:
    import pyarrow

    from exgrpo.preflight.values import shown  # exgrpo-inspect reads ids without omegaconf

    if path.suffix not in (".parquet", ".jsonl", ".json"):
        return "must end in .parquet, .jsonl or .json"
    columns: dict[str, tuple[Callable[[Any], bool], str]] = {
        prompt_key: (is_prompt, _MESSAGES),
        "extra_info": (lambda value: value is None or isinstance(value, dict), "a dictionary"),
    }
    if judged:
        columns["data_source"] = lambda value: isinstance(value, str), "text"
        columns["reward_model"] = _has_ground_truth, _GROUND_TRUTH
    try:
        table = read_columns(path, columns)
    except (pyarrow.ArrowException, OSError) as error:
        return f"cannot be read as {path.suffix} ({' '.join(str(error).split())[:200]})"
    if missing := columns.keys() - set(table.column_names) - {"extra_info"}:
        key = " (data.prompt_key)" if prompt_key in missing else ""
        return f"has no column {', '.join(sorted(missing))}{key}; docs/your-own-data.md shows a row"
    for name in table.column_names:
        right, must = columns[name]
        for row, value in enumerate(table[name].to_pylist()):
            if not right(value):
                return f"row {row}, column {name}: {shown(repr(value), 80)}: must be {must}"
    return None


def is_prompt(value: Any) -> bool:
    """Whether it is a list of messages, as verl's rows have it."""
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    """Content is text, or a list of parts where the model sees images too."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return isinstance(value.get("content"), str | list)


def _has_ground_truth(value: Any) -> bool:
    return isinstance(value, dict) and value.get("ground_truth") is not None
