"""verl's bootstrap of best@k, worst@k and maj@k with each subset of answers judged once.

verl 0.9.1 draws 1,000 subsets of a question's answers and judges every one, for each question and metric, in Python. Of
two answers there are four different subsets: on two cores this was 4 of the 13.4 s of a quickstart's validation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def install() -> None:
    """Let verl's validation in this process use the function below."""
    from verl.trainer.ppo import metric_utils

    metric_utils.bootstrap_metric = bootstrap_metric


def bootstrap_metric(
    data: Sequence[Any],
    subset_size: int,
    reduce_fns: Sequence[Callable[[np.ndarray], float]],
    n_bootstrap: int = 1000,
    seed: int = 42,
) -> list[tuple[float, float]]:
    """Mean and standard deviation of each function over subsets drawn with replacement; verl's numbers to the bit.

    Args:
        reduce_fns: of a subset, an array of objects; the same subset must give the same number.
        seed: of numpy's global generator, as in verl.
    """
    np.random.seed(seed)
    drawn_BS = np.random.choice(len(data), size=(n_bootstrap, subset_size), replace=True)
    different_DS, which = np.unique(drawn_BS, axis=0, return_inverse=True)
    answers, which_B = np.array(data, dtype=object), which.reshape(-1)
    values = [np.array([judge(answers[subset]) for subset in different_DS], np.float64) for judge in reduce_fns]
    return [(float(np.mean(each[which_B])), float(np.std(each[which_B]))) for each in values]
