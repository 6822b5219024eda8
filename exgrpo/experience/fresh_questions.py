"""The fresh half of a step: the data's questions in their order, epoch after epoch, less the retired ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.replay_state import ReplayState

logger = logging.getLogger(__name__)


class FreshQuestions:
    """Deals out the data's questions: none twice in a step, and none retired when its epoch began (as released).

    A new epoch that could not fill the step skips only what the one before it did, or else nothing. Owned by the
    trainer; reads the pool, and keeps what must be saved in the state it is handed.

    Args:
        pool: whose retired questions are left out.
        state: for ``deferred`` and ``skipped``.
        questions: the data's.
        batch: questions of a step, which an epoch must be able to fill.
        skip_retired: False: retired questions are dealt out like any other.
    """

    def __init__(
        self, pool: ExperiencePool, state: ReplayState, questions: Collection[str], batch: int, skip_retired: bool
    ) -> None:
        self._pool, self._state, self._questions, self._batch = pool, state, questions, batch
        self._skip_retired = skip_retired
        self._skipped = frozenset(pool.retired[: state.skipped] if skip_retired else ())

    def take(self, count: int, drawn: Collection[str], fetch: Callable[[], tuple[str, bool]]) -> list[str]:
        """The next ``count`` questions; one that is in the step already waits for the next step.

        Args:
            drawn: what is in the step already; with ``count`` no more than there are questions.
            fetch: gives the data's next question, and whether a new epoch has begun with it.
        """
        taken: list[str] = []
        needed = max(self._batch, len(drawn) + count)
        waiting, self._state.deferred = self._state.deferred, []
        while len(taken) < count:
            question = waiting.pop(0) if waiting else self._next(fetch, needed)
            (self._state.deferred if question in drawn or question in taken else taken).append(question)
        self._state.deferred += waiting
        return taken

    def _next(self, fetch: Callable[[], tuple[str, bool]], needed: int) -> str:
        while True:
            question, begins_epoch = fetch()
            if begins_epoch and self._skip_retired:
                self._begin_epoch(needed)
            if question not in self._skipped:
                return question

    def _begin_epoch(self, needed: int) -> None:
        retired = self._pool.retired
        for number in (len(retired), self._state.skipped, 0):
            self._state.skipped, self._skipped = number, frozenset(retired[:number])
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
