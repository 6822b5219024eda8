"""The fresh questions of a step: the data set in its order without the retired questions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from exgrpo.experience.experience_pool import ExperiencePool

logger = logging.getLogger(__name__)
NextQuestion = Callable[[], tuple[str, bool]]  # next question of the data set, and whether it begins a new epoch


class FreshQuestions:
    """Deals out the data set's questions: none twice in a step, none retired when its epoch began (as released).

    If a new epoch would be too small for the step, it skips only what the previous epoch skipped, or else nothing.

    Args:
        pool: its retired questions are left out; never changed here.
        questions: ids of the data set's questions.
        skip_retired: False: retired questions are dealt out like any other.

    Attributes:
        deferred: questions that were fetched while already in the step; they come first in the next step.
        skipped: number of retired questions left out of this epoch.
    """

    def __init__(self, pool: ExperiencePool, questions: Collection[str], skip_retired: bool) -> None:
        self._pool, self._questions, self._skip_retired = pool, frozenset(questions), skip_retired
        self.deferred: list[str] = []
        self.skip(0)

    def skip(self, number: int) -> None:
        """Leave the first `number` retired questions, in order of retirement, out of this epoch."""
        self.skipped = number
        self._skipped = frozenset(self._pool.retired[:number] if self._skip_retired else ())

    def take(self, count: int, drawn: Collection[str], next_question: NextQuestion) -> list[str]:
        """The next ``count`` questions; a question that is in the step already waits for the next step.

        Args:
            drawn: questions already in the step; with ``count`` no more than the data set has.
        """
        taken: list[str] = []
        needed = len(drawn) + count
        waiting, self.deferred = self.deferred, []
        while len(taken) < count:
            question = waiting.pop(0) if waiting else self._next(next_question, needed)
            if question in drawn or question in taken:
                self.deferred.append(question)
            else:
                taken.append(question)
        self.deferred += waiting
        return taken

    def _next(self, next_question: NextQuestion, needed: int) -> str:
        while True:
            question, begins_epoch = next_question()
            if begins_epoch and self._skip_retired:
                self._begin_epoch(needed)
            if question not in self._skipped:
                return question

    def _begin_epoch(self, needed: int) -> None:
        retired = self._pool.retired
        for number in (len(retired), self.skipped, 0):
            self.skip(number)
            if sum(question not in self._skipped for question in self._questions) >= needed:
                break
        logger.warning(
            "a new epoch of the data: %d of %d questions are retired, %d of them are skipped",
            len(retired),
            len(self._questions),
            number,
        )

    @property
    def exhausted(self) -> bool:
        """Whether every question of the data set is retired, so that nothing is left to learn from."""
        retired = self._pool.retired
        return (
            self._skip_retired
            and len(retired) >= len(self._questions)  # cheap, and false in almost every step
            and self._questions <= set(retired)
        )
