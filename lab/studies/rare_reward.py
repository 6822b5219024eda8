"""The rewards of the tasks where success is rare, as verl asks for them; the ground truth is the question itself.

Imported by verl: trainer_study.py puts the study's folders on its import path."""

from __future__ import annotations

from typing import Any

from rare_tasks import RARE_TASKS


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **settings: Any
) -> dict[str, float]:
    """0 or 1, also as ``acc``.

    Args:
        data_source: name of the task.
    """
    reward = RARE_TASKS[data_source].reward(ground_truth, solution_str)
    return {"score": reward, "acc": reward}
