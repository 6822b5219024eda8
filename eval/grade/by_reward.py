"""Verdicts of a training's own reward function, beside those of Math-Verify and the full grader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exgrpo_tools.reward_option import SUCCESS, Reward

Row = dict[str, Any]


def let_decide(rows: Sequence[Row], reward: Reward) -> list[Row]:
    """The rows with ``correct`` by the reward, 1 where it exceeds `SUCCESS`; ``reward`` is its
    score, ``math_verify_correct`` what ``correct`` was.

    A reward is handed what the training hands it: the benchmark as data_source, and extra_info of
    the row's input file, where that is still there.

    Args:
        rows: graded, see grading.grade.

    Raises:
        ValueError: it raises, or gives no finite number; with the row's benchmark and question.
    """
    judged = []
    for row in tqdm(rows, desc="reward", unit="row", disable=None):
        golds = row.get("answers") or row["answer"]
        extra = _extra_infos(str(row.get("input_file"))).get(row["question_id"], {})
        handed = {"data_source": row["benchmark"], "ground_truth": golds, "extra_info": dict(extra)}
        try:
            score, _ = reward.score(row["response"], handed)
        except ValueError as error:
            place = f"question {row['question']} of {row['benchmark']}"
            raise ValueError(f"--reward={reward.name}: {place}: {error}") from error
        by_math_verify = row.get("math_verify_correct", row["correct"])
        verdict = {"correct": score > SUCCESS, "reward": score}
        judged.append({**row, "math_verify_correct": by_math_verify, **verdict})
    return judged


@cache
def _extra_infos(file: str) -> Mapping[str, Mapping[str, Any]]:
    """question id -> extra_info of a file in verl's schema; empty for any other."""
    from exgrpo.data_files import read_columns
    from exgrpo.experience.question_id import row_question_id

    if not file.endswith(".parquet") or not Path(file).is_file():
        return {}
    table = read_columns(Path(file), ["prompt", "extra_info"])
    if "extra_info" not in table.column_names or "prompt" not in table.column_names:
        return {}
    rows = table.to_pylist()
    return {
        row_question_id(row["extra_info"], row["prompt"]): row["extra_info"] or {} for row in rows
    }
