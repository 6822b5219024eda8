"""A user's reward, called before Ray on answers of which everybody knows what they deserve.

In a run verl takes a reward that raises for 0, and trains on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from exgrpo.data_files import is_local, paths_of, read_columns
from exgrpo.open_table import load_function
from exgrpo.preflight.values import shown

_logger = logging.getLogger(__name__)
KEY = "reward.custom_reward_function"
OURS = "pkg://exgrpo.math_verify_reward"
COLUMNS = ("data_source", "reward_model", "extra_info")


def rehearse(config: DictConfig) -> None:
    """Print what the reward gives for four answers to the first question of the training data.

    Not for exgrpo's own reward, nor where it asks a reward model, which is not up yet. One line is
    logged where all answers are worth the same: nothing would be learned.

    Raises:
        ValueError: it raises, or returns what is neither a finite number nor verl's dictionary.
    """
    settings = config.reward.custom_reward_function
    files = [path for path in paths_of(config.data.train_files) if is_local(path)]
    asks_a_model = OmegaConf.select(config, "reward.reward_model.enable")
    if not settings.path or settings.path == OURS or asks_a_model or not files:
        return
    row = read_columns(Path(files[0]), COLUMNS).slice(0, 1).to_pylist()[0]
    path = str(settings.path).removeprefix("file://").removeprefix("pkg://")
    prefix = "pkg://" if str(settings.path).startswith("pkg://") else ""
    reward = load_function(f"{KEY}.path", f"{prefix}{path}:{settings.name}")
    given = {
        answer: _given(reward, settings, row, answer, text)
        for answer, text in _answers(str(row["reward_model"]["ground_truth"])).items()
    }
    said = ", ".join(f"{value:g} for {answer}" for answer, value in given.items())
    print(f"exgrpo: reward: {said} (row 0 of {files[0]})", flush=True)
    if len({*given.values()}) == 1:
        _logger.warning(
            "exgrpo: %s.path=%s: %s gives each of these answers the same reward; a run in which it "
            "does so learns nothing",
            KEY,
            settings.path,
            settings.name,
        )


def _answers(gold: str) -> dict[str, str]:
    return {
        "the gold in a box": f"<think>\nI add.\n</think>\n\nThe answer is \\boxed{{{gold}}}.",
        "the gold alone": gold,
        "nothing": "",
        "nonsense": "I do not know.",
    }


def _given(
    reward: Callable[..., Any],
    settings: DictConfig,
    row: Mapping[str, Any],
    answer: str,
    text: str,
) -> float:
    where = f"{KEY}.path={settings.path}: {settings.name}"
    arguments = {
        "data_source": row["data_source"],
        "solution_str": text,
        "ground_truth": row["reward_model"]["ground_truth"],
        "extra_info": dict(row.get("extra_info") or {}),
        **(settings.get("reward_kwargs") or {}),
    }
    try:
        found = reward(**arguments)
        found = asyncio.run(found) if inspect.iscoroutine(found) else found
    except Exception as error:  # a user's reward may raise any error
        at = traceback.extract_tb(error.__traceback__)[-1]
        why = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{where} raises {type(error).__name__} ({why}) at {at.filename}:{at.lineno} for "
            f"{answer} in row 0 of data.train_files"
        ) from None
    score = found.get("score") if isinstance(found, dict) else found
    try:
        if not isinstance(score, str) and math.isfinite(score):  # type: ignore[arg-type]
            return float(score)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ValueError(
        f"{where} returns {shown(repr(found), 80)} for {answer} in row 0 of data.train_files: must "
        "be a finite number, or a dictionary with one as score"
    )
