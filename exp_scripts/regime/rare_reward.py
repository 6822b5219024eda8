"""The rewards of the tasks where success is rare, as verl asks for them; the ground truth is the question itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "ablation")]

from rare_tasks import RARE_TASKS  # noqa: E402


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None, **settings: Any
) -> dict[str, float]:
    """0 or 1, also as ``acc``.

    Args:
        data_source: name of the task.
    """
    reward = RARE_TASKS[data_source].reward(ground_truth, solution_str)
    return {"score": reward, "acc": reward}
