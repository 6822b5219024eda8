"""The reward, called before Ray on answers of which everybody knows what they deserve: a user's on
four answers to a question, any on golds that should be accepted as responses to themselves.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from exgrpo import math_verify_reward
from exgrpo.data_files import is_local, paths_of, read_columns
from exgrpo.gold_answers import golds_of
from exgrpo.open_table import load_function
from exgrpo.provenance import OURS
from exgrpo.refusal import shown

_logger = logging.getLogger(__name__)
KEY = "reward.custom_reward_function"
RIGHT = "the gold in a box"
COLUMNS = ("data_source", "reward_model", "extra_info")
GOLDS, SECONDS, SHOWN = 256, 0.5, 3  # that are judged at most, and named


def rehearse(config: DictConfig) -> None:
    """Print what a user's reward gives for four answers to the first question of the training data,
    and warn of golds that the reward does not accept.

    Not where it asks a reward model, which is not up yet.

    Raises:
        ValueError: it raises, returns what is neither a finite number nor verl's dictionary, or
            gives each answer the same: nothing would be learned.
    """
    if not config.trainer.rehearse_reward:
        return
    settings = config.reward.custom_reward_function
    files = [path for path in paths_of(config.data.train_files) if is_local(path)]
    asks_a_model = OmegaConf.select(config, "reward.reward_model.enable")
    if not settings.path or asks_a_model or not files:
        return
    table = read_columns(Path(files[0]), COLUMNS)
    places = range(0, len(table), -(-len(table) // GOLDS))
    rows = dict(zip(places, table.take([*places]).to_pylist(), strict=True))
    row = rows[0]
    path = str(settings.path).removeprefix("file://").removeprefix("pkg://")
    prefix = "pkg://" if str(settings.path).startswith("pkg://") else ""
    reward = load_function(f"{KEY}.path", f"{prefix}{path}:{settings.name}")
    if settings.path == OURS:
        _golds(reward, settings, rows, files[0])
        math_verify_reward.close()
        return
    given = {
        answer: _given(reward, settings, row, answer, text)
        for answer, text in _answers(row).items()
    }
    said = ", ".join(f"{value:g} for {answer}" for answer, value in given.items())
    print(f"exgrpo: reward: {said} (row 0 of {files[0]})", flush=True)
    if len({*given.values()}) == 1:
        raise ValueError(
            f"{KEY}.path={settings.path}: {settings.name} gives each of these answers the same "
            "reward, and a run in which it does so learns nothing; if it looks at something else, "
            "trainer.rehearse_reward=False"
        )
    if given[RIGHT] > given["nothing"]:
        _golds(reward, settings, rows, files[0])


def _golds(
    reward: Callable[..., Any],
    settings: DictConfig,
    rows: Mapping[int, Mapping[str, Any]],
    file: str,
) -> None:
    """Warn of golds that are worth no more than nothing when they are the response.

    Golds of the whole file, as many as `SECONDS` allow after the first, which may start a process.
    """
    until, judged, wrong = math.inf, 0, []
    for place, row in rows.items():
        answers = _answers(row)
        gold, nothing = (
            _given(reward, settings, row, answer, answers[answer]) for answer in (RIGHT, "nothing")
        )
        judged += 1
        if gold <= nothing:
            wrong.append(f"row {place} {shown(row['reward_model']['ground_truth'])}")
        until = min(until, (now := time.monotonic()) + SECONDS)
        if now > until:
            break
    if wrong:
        _logger.warning(
            "exgrpo: %s: the reward does not take %d of %d golds as their own response, no rollout "
            "can be right there: %s",
            file,
            len(wrong),
            judged,
            "; ".join(wrong[:SHOWN]),
        )


def _answers(row: Mapping[str, Any]) -> dict[str, str]:
    gold = next(iter(golds_of(row["reward_model"]["ground_truth"])), "")
    return {
        RIGHT: f"<think>\nI add.\n</think>\n\nThe answer is \\boxed{{{gold}}}.",
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
