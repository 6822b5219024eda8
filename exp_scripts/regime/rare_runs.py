"""One run of the studies where success is rare: a task, settings, a seed; its file; its measures."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ablate import Run, parse

from eval.estimate.estimates import pass_at_k

TRAINED = 64  # training questions of a test, at most
ANSWERS, LAST_ANSWERS = 2, 32  # a test question: during a run, and at its end
LAST_QUESTIONS = 48
ORDERS = (1, 2, 4, 8, 16, 32)  # of pass@k


def test(policy: Any, task: Any) -> dict[str, float]:
    """Accuracy of two answers to each test question, and to the first training questions as `trained`.

    Where the task shifts, `test_short` and `test_long` are the parts of `test`.
    """
    from rare_tasks import is_short

    known = [*task.train[:TRAINED], *task.later]
    asked = [question for question in (*task.test, *known) for _ in range(ANSWERS)]
    replies = policy.sample(asked, 0)
    right = np.array([task.reward(q, policy.decode(reply)) for q, reply in zip(asked, replies, strict=True)])
    right, trained = np.split(right, [len(task.test) * ANSWERS])
    found = {"test": float(right.mean()), "trained": float(trained.mean())}
    if task.later:
        short = np.array([is_short(question) for question in asked[: len(right)]])
        found |= {"test_short": float(right[short].mean()), "test_long": float(right[~short].mean())}
    return found


def last_test(policy: Any, task: Any) -> dict[str, float]:
    """pass@k (unbiased, of 32 answers) of held-out and of training questions, and the policy's entropy."""
    import torch

    torch.manual_seed(0)
    found: dict[str, float] = {}
    half = LAST_QUESTIONS // 2
    trained = [*task.train, *task.later][:LAST_QUESTIONS]
    held_out = [*task.test[:half], *task.test[-half:]]
    for part, questions in (("held_out", held_out), ("trained", trained)):
        asked = [question for question in questions for _ in range(LAST_ANSWERS)]
        replies = policy.sample(asked, 0)
        right = [task.reward(q, policy.decode(reply)) for q, reply in zip(asked, replies, strict=True)]
        counts = np.reshape(right, (len(questions), LAST_ANSWERS)).sum(1).astype(int).tolist()
        for k in ORDERS:
            found[f"{part}_pass_{k}"] = float(np.mean([pass_at_k(LAST_ANSWERS, correct, k) for correct in counts]))
        if part == "held_out":
            found["entropy"] = float(np.mean([reply.entropy for reply in replies]))
    return found


def perform(run: Run, folder: Path, last: bool = True) -> float:
    """Train, and write the run's file; returns the seconds it took.

    Args:
        last: test the end with many answers too; the search does without.
    """
    import torch

    torch.set_num_threads(1)
    from rare_tasks import load
    from study_loop import train

    wall, processor = time.monotonic(), time.process_time()
    experience, loss, loop, objective = parse(run.overrides)
    policy, task = load(run.task)
    curve = list(train(policy, task, experience, loss, replace(loop, seed=run.seed), objective, test))
    seconds = {"seconds": time.monotonic() - wall, "processor_seconds": time.process_time() - processor}
    asked = sum(row.get("asked", 0) for row in curve)
    visits = asked / (len(task.train) + len(task.later))
    facts = {"task": run.task, "settings": sorted(run.overrides), "seed": run.seed, **seconds, "visits": visits}
    path = run.file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(facts | {"last": last_test(policy, task) if last else None, "curve": curve}))
    os.replace(temporary, path)
    return seconds["seconds"]


def read(run: Run, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.file(folder).read_text())
    return found


def area(curve: Sequence[Mapping[str, float]], budget: float, name: str) -> float:
    """Mean accuracy over the generated tokens of a run, from none to the budget."""
    rows = [row for row in curve if name in row]
    tokens, accuracy = [row["generated"] for row in rows], [row[name] for row in rows]
    grid = np.linspace(0, budget, 201)
    return float(np.trapezoid(np.interp(grid, tokens, accuracy), grid) / budget)
