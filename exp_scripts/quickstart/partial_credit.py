"""A reward between 0 and 1 for the quickstart's sums, as a reward model gives it: more, the nearer
the answer is.
"""

from __future__ import annotations

import re
from typing import Any

HIGHEST = 25  # of five numbers from 0 to 5


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: object = None,
    **settings: Any,
) -> dict[str, float]:
    """1 for the sum, up to .5 for another number, 0 without an answer; ``acc`` says whether it is
    the sum.
    """
    boxed = re.findall(r"boxed{(\d{1,3})}", solution_str)
    if not boxed:
        return {"score": 0.0, "acc": 0.0}
    error = abs(int(boxed[-1]) - int(ground_truth))
    score = 1.0 if error == 0 else 0.5 * max(0.0, 1 - error / HIGHEST)
    return {"score": score, "acc": float(error == 0)}
