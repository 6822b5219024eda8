"""ExGRPO's experience replay as one object (arXiv 2510.02245, section 3): what to ask, what to replay, what to keep.

A training loop says when:

    drawn = replay.draw(step, size, next_question)  # replayed questions, the rest fresh; then generate
    choice = replay.choose(replay.candidates(drawn.replayed), look)  # a past success for each replayed question
    metrics = replay.observe(step, groups, choice.metrics(step))  # begin to mix, store, retire, forget
    state = replay.state()  # with the pool, all that a run needs to go on
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from exgrpo.experience.choice import Choice, Look, choose_trajectories
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.fresh_questions import FreshQuestions, NextQuestion
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.experience.trajectory_selector import TrajectorySelector

logger = logging.getLogger(__name__)


class Draw(NamedTuple):
    """The questions of a step, or of a later part of it; none stands in a step twice.

    Attributes:
        replayed: questions that one past success joins; ask for K - 1 rollouts of each.
        fresh: ask for K.
        mixed: whether mixing had begun when the step was drawn, so that its loss is the mixed one.
    """

    replayed: list[str]
    fresh: list[str]
    mixed: bool


class ExperienceReplay:
    """Pool, selection, generator, delayed start and the fresh questions, of one training run.

    Args:
        config: with `experience` False nothing is replayed or kept.
        questions: ids of the data's questions.
        pool: to go on with; default: an empty one. Owned by this object from here on.
        rng: of every draw: questions, and random selection; default: of `config.exp_seed`. Handed to others for what
            belongs to the same run, such as the order of a batch.

    Attributes:
        pool, rng: as above.
        mixing: whether replay has begun (delayed start); never goes back to False.
    """

    def __init__(
        self,
        config: ExperienceConfig,
        questions: Collection[str],
        pool: ExperiencePool | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.config = config
        self.pool = ExperiencePool(config) if pool is None else pool
        self.rng = np.random.default_rng(config.exp_seed) if rng is None else rng
        self.mixing = config.experience and config.experience_start_sratio == 0
        self._questions = questions
        self._fresh = FreshQuestions(self.pool, questions, config.experience_skip_retired)
        self._selector = TrajectorySelector(config.exp_metric, config.exp_select_mode)
        self._step = -1  # that the next two are of
        self._drawn: list[str] = []
        self._mixed = False

    def draw(self, step: int, size: int, next_question: NextQuestion) -> Draw:
        """rho * size replayed questions, if as many are eligible, and the rest fresh; all of them new to the step.

        A second draw in a step, such as for groups that failed, is of fresh questions alone.

        Args:
            next_question: gives the data's next question and whether a new epoch begins with it; what is fetched and
                cannot be used in this step is used in the next.

        Raises:
            RuntimeError: the step would need more questions than there are.
        """
        replayed: list[str] = []
        if self._step != step:
            self._step, self._drawn, self._mixed = step, [], self.mixing
            if self.mixing:
                count = int(self.config.experience_ratio * size)
                replayed = self.pool.choose(count, self.rng, exclude=frozenset(self._fresh.deferred))
        drawn = frozenset([*replayed, *self._drawn])
        missing, left = size - len(replayed), len(self._questions) - len(drawn)
        if missing > left:
            raise RuntimeError(f"step {step} needs {missing} more questions, {left} are not in it yet")
        fresh = self._fresh.take(missing, drawn, next_question)
        self._drawn += replayed + fresh
        return Draw(replayed, fresh, self._mixed)

    def candidates(self, questions: Iterable[str]) -> dict[str, tuple[Trajectory, ...]]:
        """Question -> its trajectories in the order of recording. KeyError if the pool holds none of one."""
        return {question: self.pool.candidates(question) for question in questions}

    def choose(self, candidates: Mapping[str, Sequence[Trajectory]], look: Look) -> Choice:
        """The trajectory of each question that the current policy's view decides for (`choose_trajectories`).

        Args:
            candidates: of questions whose group can take one: at least one fresh rollout came back.
            look: how the current policy sees candidates; called once at most.
        """
        config = self.config
        return choose_trajectories(
            candidates, self._selector, look, self.rng, config.exp_max_candidates, config.exp_min_ess
        )

    def observe(self, step: int, groups: Sequence[RolloutGroup], noted: Mapping[str, float]) -> dict[str, float]:
        """Learn what a step's fresh rollouts came to, and close the step.

        Mixing begins, for good, once a batch is solved often enough; collecting and retiring begin with it.

        Args:
            noted: what else was measured in the step; kept in the pool's history beside its own numbers.

        Returns:
            fresh_score, mixing (of this step's draw), refused and the pool's metrics.
        """
        rollouts = sum(group.size for group in groups)
        score = sum(group.solved for group in groups) / max(rollouts, 1)
        if not self.mixing and self.config.experience and score > self.config.experience_start_sratio:
            logger.warning("step %d: %.3f of the rollouts are correct, mixing begins", step, score)
            self.mixing = True
        if self.mixing:
            for group in groups:
                self.pool.observe(group)
        measured = {
            "fresh_score": score,
            "mixing": float(self._mixed),
            "refused": float(sum(group.refused for group in groups)),
        }
        return measured | self.pool.end_step(step, {**noted, **measured})

    @property
    def exhausted(self) -> bool:
        """Whether every question of the data is retired, so that nothing is left to learn from."""
        return self._fresh.exhausted

    def state(self) -> dict[str, Any]:
        """What must be remembered beside the pool, as JSON values; the pool has a saved form of its own."""
        return {
            "mixing": self.mixing,
            "rng": self.rng.bit_generator.state,
            "deferred": self._fresh.deferred,
            "skipped": self._fresh.skipped,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; states from before `skipped` existed skip nothing until the next epoch."""
        self.mixing = state["mixing"]
        self.rng.bit_generator.state = state["rng"]
        self._fresh.deferred = list(state["deferred"])
        self._fresh.skip(int(state.get("skipped", 0)))
