"""Whether the rows of the data files are in verl's format (docs/your-own-data.md), which verl finds
out in the middle of its first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig

from exgrpo.preflight.train_files import is_local, read_columns
from exgrpo.preflight.values import shown

_SUFFIXES = (".parquet", ".jsonl", ".json")
_MESSAGES = "a list of messages, {role: text, content: text} each"
_GROUND_TRUTH = "a dictionary with ground_truth, which the reward is handed"


def verify(config: DictConfig) -> None:
    """ValueError with a line for each file: its first wrong row, the column, what is allowed."""
    judged = config.reward.reward_manager.source == "register"  # each of verl's own reads these two
    wrong: dict[str, str] = {}  # one file may be given for both
    for key in ("train_files", "val_files"):
        value = config.data[key]
        paths = value if isinstance(value, list | ListConfig) else [value]
        for path in (str(path) for path in paths if is_local(str(path))):
            error = next(_errors(Path(path).expanduser(), config.data.prompt_key, judged), None)
            if error is not None:
                wrong.setdefault(path, f"data.{key}={path}: {error}")
    if wrong:
        raise ValueError("\n".join(wrong.values()))


def _errors(path: Path, prompt_key: str, judged: bool) -> Iterator[str]:
    import pyarrow

    if path.suffix not in _SUFFIXES:
        yield f"must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        return
    columns: dict[str, tuple[Callable[[Any], bool], str]] = {
        prompt_key: (_is_prompt, _MESSAGES),
        "extra_info": (lambda value: value is None or isinstance(value, dict), "a dictionary"),
    }
    if judged:
        columns["data_source"] = lambda value: isinstance(value, str), "text"
        columns["reward_model"] = _has_ground_truth, _GROUND_TRUTH
    try:
        table = read_columns(path, columns)
    except (pyarrow.ArrowException, OSError) as error:
        yield f"cannot be read as {path.suffix} ({' '.join(str(error).split())[:200]})"
        return
    if missing := columns.keys() - set(table.column_names) - {"extra_info"}:
        key = " (data.prompt_key)" if prompt_key in missing else ""
        yield (
            f"has no column {', '.join(sorted(missing))}{key}; docs/your-own-data.md shows a row"
        )
    for name in table.column_names:
        right, must = columns[name]
        for row, value in enumerate(table[name].to_pylist()):
            if not right(value):
                yield f"row {row}, column {name}: {shown(repr(value), 80)}: must be {must}"
                break


def _is_prompt(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    """Content is text, or a list of parts where the model sees images too."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return isinstance(value.get("content"), str | list)


def _has_ground_truth(value: Any) -> bool:
    return isinstance(value, dict) and value.get("ground_truth") is not None
