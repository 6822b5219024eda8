"""Whether the rows of the data files are in verl's format (docs/your-own-data.md), which verl finds
out in its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
from omegaconf import DictConfig, OmegaConf

from exgrpo.data_files import is_local, is_prompt, paths_of, read_columns
from exgrpo.gold_answers import golds_of
from exgrpo.provenance import OURS
from exgrpo.refusal import shown

_MESSAGES = "a list of messages, {role: text, content: text} each"
_GROUND_TRUTH = "a dictionary with ground_truth, which the reward is handed"
_EMPTY = "text that is not empty as ground_truth: no response could be right"
_DIGITS = 2.0**53  # from here on integers have lost digits where JSON or pandas made them floats
_LOST = "text as ground_truth: as a number of so many digits it has lost some"


def verify_rows(config: DictConfig) -> None:
    """ValueError with a line for each file: its first wrong row, the column, what is allowed."""
    judged = config.reward.reward_manager.source == "register"  # each of verl's own reads these two
    ours = OmegaConf.select(config, "reward.custom_reward_function.path") == OURS
    wrong: dict[str, str] = {}  # one file may be given for both
    for key in ("train_files", "val_files"):
        if not (paths := paths_of(config.data[key])):
            wrong[key] = f"data.{key}=[]: must be at least one file"
        for path in filter(is_local, paths):
            error = _wrong_row(Path(path), config.data.prompt_key, judged, ours)
            if error is not None:
                wrong.setdefault(path, f"data.{key}={path}: {error}")
    if wrong:
        raise ValueError("\n".join(wrong.values()))


def _wrong_row(path: Path, prompt_key: str, judged: bool, ours: bool) -> str | None:
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
            if name == "reward_model" and judged and (unfit := _unfit_gold(value, ours)):
                return f"row {row}, column {name}: {shown(repr(value), 80)}: must have {unfit}"
    return None


def _unfit_gold(value: dict[str, Any], ours: bool) -> str | None:
    """What a gold must be that cannot be won; a reward of the user's own may need none."""
    gold = value["ground_truth"]
    if isinstance(gold, float) and abs(gold) >= _DIGITS:
        return _LOST
    golds = golds_of(gold)
    return _EMPTY if ours and not all(each.strip() for each in golds or [""]) else None


def _has_ground_truth(value: Any) -> bool:
    return isinstance(value, dict) and value.get("ground_truth") is not None
