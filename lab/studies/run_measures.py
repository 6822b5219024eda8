"""What a run of the studies measures: accuracy while it trains, many answers at its end, the mean over the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from exgrpo_eval.estimate.estimates import pass_at_k

ANSWERS, LAST_ANSWERS = 2, 32  # to a question: during a run, and at its end
TRAINED = 64  # training questions of a test, at most
LAST_QUESTIONS = 48
ORDERS = (1, 2, 4, 8, 16, 32)  # of pass@k


def test(policy: Any, task: Any) -> dict[str, float]:
    """Accuracy of two answers to each test question, and to the first training questions as `trained`."""
    asked = [question for question in (*task.test, *task.train[:TRAINED]) for _ in range(ANSWERS)]
    replies = policy.sample(asked, 0)
    right = np.array([task.reward(q, policy.decode(reply)) for q, reply in zip(asked, replies, strict=True)])
    held_out, trained = np.split(right, [len(task.test) * ANSWERS])
    return {"test": float(held_out.mean()), "trained": float(trained.mean())}


def last_test(policy: Any, task: Any) -> dict[str, float]:
    """pass@k (unbiased, of 32 answers) of held-out and of training questions, and the policy's entropy."""
    torch.manual_seed(0)
    found: dict[str, float] = {}
    half = LAST_QUESTIONS // 2
    held_out = [*task.test[:half], *task.test[-half:]]
    for part, questions in (("held_out", held_out), ("trained", task.train[:LAST_QUESTIONS])):
        asked = [question for question in questions for _ in range(LAST_ANSWERS)]
        replies = policy.sample(asked, 0)
        right = [task.reward(q, policy.decode(reply)) for q, reply in zip(asked, replies, strict=True)]
        counts = np.reshape(right, (len(questions), LAST_ANSWERS)).sum(1).astype(int).tolist()
        for k in ORDERS:
            found[f"{part}_pass_{k}"] = float(np.mean([pass_at_k(LAST_ANSWERS, correct, k) for correct in counts]))
        if part == "held_out":
            found["entropy"] = float(np.mean([reply.entropy for reply in replies]))
    return found


def area(curve: Sequence[Mapping[str, float]], budget: float, name: str) -> float:
    """Mean accuracy over the generated tokens of a run, from none to the budget."""
    rows = [row for row in curve if name in row]
    tokens, accuracy = [row["generated"] for row in rows], [row[name] for row in rows]
    grid = np.linspace(0, budget, 201)
    return float(np.trapezoid(np.interp(grid, tokens, accuracy), grid) / budget)
