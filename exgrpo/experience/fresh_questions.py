"""The fresh half of a step: the data's questions in their order, epoch after epoch, without the retired ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from exgrpo.experience.experience_pool import ExperiencePool

logger = logging.getLogger(__name__)
NextQuestion = Callable[[], tuple[str, bool]]  # the data's next question, and whether a new epoch begins with it


class FreshQuestions:
    """Deals out the data's questions: none twice in a step, and none retired when its epoch began (as released).

    A new epoch that could not fill the step skips only what the one before it did, or else nothing.

    Args:
        pool: whose retired questions are left out; it is read, never changed.
        questions: the data's.
        skip_retired: False: retired questions are dealt out like any other.

    Attributes:
        deferred: questions fetched from the data but already in that step; the first ones of the next step.
    """

    def __init__(self, pool: ExperiencePool, questions: Collection[str], skip_retired: bool) -> None:
        self._pool, self._questions, self._skip_retired = pool, questions, skip_retired
        self.deferred: list[str] = []
        self.skip(0)

    def skip(self, number: int) -> None:
        """Leave the first `number` retired questions, in order of retirement, out of this epoch."""
        self.skipped = number
        self._skipped = frozenset(self._pool.retired[:number] if self._skip_retired else ())

    def take(self, count: int, drawn: Collection[str], next_question: NextQuestion) -> list[str]:
        """The next ``count`` questions; one that is in the step already waits for the next step.

        Args:
            drawn: what is in the step already; with ``count`` no more than there are questions.
        """
        taken: list[str] = []
        needed = len(drawn) + count
        waiting, self.deferred = self.deferred, []
        while len(taken) < count:
            question = waiting.pop(0) if waiting else self._next(next_question, needed)
            (self.deferred if question in drawn or question in taken else taken).append(question)
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
            *(len(retired), len(self._questions), number),
        )

    @property
    def exhausted(self) -> bool:
        """Whether every question of the data is retired, so that nothing is left to learn from."""
        retired = self._pool.retired
        return (
            self._skip_retired
            and len(retired) >= len(self._questions)  # rarely so, and cheap to know
            and set(self._questions) <= set(retired)
        )
