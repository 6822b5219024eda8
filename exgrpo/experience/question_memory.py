"""What replay remembers of each question, and the draws by rules that look at it.

A rule of `trainer.exp_question_choice` may be a class, made without arguments: its instance is the
rule, and where it has these methods

    observe(step, groups)        what a step brought, a list of RolloutGroup, once it is over
    state() -> JSON values       saved with the pool
    restore(state)               before the next draw of a resumed run

they are called, so that a resumed run draws what the uninterrupted one draws.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience import rules
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.replayed_group import Odds
from exgrpo.experience.trajectory import RolloutGroup

COLUMNS = ("visits", "last_draw", "newest_success", "solved")
SOLVED = COLUMNS.index("solved")
_UNKNOWN = (0.0, -1.0, -1.0, np.nan)


class QuestionMemory:
    """Visits, draws and successes by question; kept for the rules that look at them alone."""

    def __init__(self) -> None:
        self._known: dict[str, list[float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def drawn(self, questions: Iterable[str], step: int) -> None:
        """Questions that this step draws for replay."""
        for question in questions:
            self._of(question)[1] = step

    def observe(self, groups: Iterable[RolloutGroup], step: int) -> None:
        """What came of fresh rollouts."""
        for group in groups:
            known = self._of(group.question)
            known[0] += 1
            known[2] = step if group.solved else known[2]
            known[3] = group.solved / group.size

    def _of(self, question: str) -> list[float]:
        return self._known.setdefault(question, list(_UNKNOWN))

    def columns(self, questions: Sequence[str]) -> npt.NDArray[np.float64]:
        """[n, COLUMNS] of these questions; unknown ones have 0, -1, -1 and NaN."""
        rows = [self._known.get(question, _UNKNOWN) for question in questions]
        return np.array(rows, np.float64).reshape(len(rows), len(COLUMNS))

    def questions(self) -> list[str]:
        """Those that are known, in the order in which they became so."""
        return list(self._known)

    def hold(self, questions: Sequence[str], columns: npt.NDArray[np.float64]) -> None:
        """Remember this instead, as of `questions` and `columns`."""
        self._known = dict(zip(questions, columns.tolist(), strict=True))


class QuestionDraw:
    """Draws questions of the pool by a rule that knows what was remembered of them.

    Args:
        name: a rule's, `trainer.exp_question_choice`.
        memory: owned by the caller.
    """

    def __init__(self, name: str, memory: QuestionMemory) -> None:
        self._key = f"trainer.exp_question_choice={name}"
        rule: Any = rules.QUESTION_CHOICES.load("trainer.exp_question_choice", name)
        self._rule: Any = rule() if inspect.isclass(rule) else rule
        self._memory = memory

    def choose(
        self,
        pool: ExperiencePool,
        count: int,
        rng: np.random.Generator,
        exclude: Collection[str],
        step: int,
    ) -> dict[str, Odds]:
        """Up to `count` distinct questions with the odds of each, drawn one after the other."""
        open_ones = [question for question in pool if question not in exclude]
        buckets = np.array([pool.bucket(question) for question in open_ones], np.int64)
        known = self._memory.columns(open_ones)[:, :3].astype(np.int64)
        facts = rules.QuestionFacts(buckets, *known.T)
        weights = checked_weights(self._key, self._rule(facts, step), len(open_ones))
        # the least of exponential times over their weights: the law of one draw after the other
        with np.errstate(divide="ignore"):
            times = rng.exponential(size=len(open_ones)) / weights
        chosen = [at for at in np.argsort(times, kind="stable")[:count].tolist() if weights[at]]
        shares = weights / max(weights.sum(), np.finfo(float).tiny)
        return {
            open_ones[at]: Odds(int(buckets[at]), float(shares[at]), 1, len(chosen))
            for at in chosen
        }

    def observe(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Tell the rule, if it listens, what a step brought."""
        if hasattr(self._rule, "observe"):
            self._rule.observe(step, groups)

    def state(self) -> Any:
        """The rule's own, JSON values; None if it has none."""
        return self._rule.state() if hasattr(self._rule, "state") else None

    def restore(self, state: Any) -> None:
        if state is not None and hasattr(self._rule, "restore"):
            self._rule.restore(state)


def group_weights(
    name: str, groups: Sequence[StoredGroup], memory: QuestionMemory, threshold: float, step: int
) -> npt.NDArray[np.float64]:
    """The weight of each past group in a draw, by a rule of `trainer.exp_group_choice`.

    Args:
        threshold: a reward above it is a success.
    """
    rewards = [np.array([one.reward for one in group.rollouts]) for group in groups]
    today = memory.columns([group.question for group in groups])[:, SOLVED]
    then = np.array([(each > threshold).mean() for each in rewards])
    facts = rules.GroupFacts(
        np.array([group.step for group in groups], np.int64),
        np.where(np.isnan(today), then, today),
        np.array([np.abs(each - each.mean()).mean() for each in rewards]),
    )
    key = "trainer.exp_group_choice"
    given = rules.GROUP_CHOICES.load(key, name)(facts, step)
    return checked_weights(f"{key}={name}", given, len(groups))


def checked_weights(key: str, given: Any, count: int) -> npt.NDArray[np.float64]:
    """The weights as float64 [count]; ValueError if they are not so many finite ones from 0 on."""
    weights = np.asarray(given, dtype=np.float64)
    if weights.shape != (count,) or not (np.isfinite(weights) & (weights >= 0)).all():
        returned = str(weights.tolist())[:200]
        raise ValueError(f"{key}: returned {returned}: must be {count} finite weights of 0 or more")
    return weights
