"""Fresh rows and replayed questions become one batch of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from exgrpo.experience.experience_helpers import Row, columns_of, prompt_rows


class ExperienceMixCollateFn:
    """Builds the batch B_on + B_exp of a step (equation 4), in random order.

    A replayed question needs K-1 rollouts, as a replayed one completes its group; a fresh one K.

    Args:
        row_of: question id -> its row of the data set.
        rollout_n: K, rollouts per question.
        collate: rows -> columns; default: object arrays.
    """

    def __init__(
        self,
        row_of: Callable[[str], Row],
        rollout_n: int,
        collate: Callable[[Sequence[Row]], dict[str, Any]] = columns_of,
    ):
        if rollout_n < 2:
            needs = "a group of one fresh and one replayed rollout needs 2 or more"
            raise ValueError(f"rollout_n={rollout_n}: {needs}")
        self._row_of = row_of
        self._rollout_n = rollout_n
        self._collate = collate

    def __call__(
        self,
        fresh: Sequence[Row],
        replayed: Sequence[str],
        step: int,
        rng: np.random.Generator,
        first: int = 0,
    ) -> dict[str, Any]:
        """Columns [B] of the mixed batch, with ``uid``, ``__rollout_n__`` and ``is_replayed``.

        Args:
            fresh: rows of B_on, each with ``question_id``.
            replayed: question ids of B_exp; must be distinct and not in ``fresh``.
            step: the global step, for the uids.
            rng: shuffles the batch, so that each mini-batch has a similar mix; advanced once.
            first: position of the batch's first prompt in its step; above 0 in a later batch.

        Raises:
            ValueError: the batch is empty, or a question is in it twice.
        """
        past = [self._row_of(question) for question in replayed]
        questions = [row["question_id"] for row in (*fresh, *past)]
        if not questions:
            raise ValueError("a batch of no questions: give fresh rows, replayed questions or both")
        if len(set(questions)) < len(questions):
            twice = next(question for question in questions if questions.count(question) > 1)
            raise ValueError(f"question {twice!r} stands in the batch twice")
        return self._collate(prompt_rows(fresh, past, self._rollout_n, step, rng, first=first))
