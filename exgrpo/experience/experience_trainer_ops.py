"""ExGRPO's replay as one object (arXiv 2510.02245, section 4): what to ask, to replay, to keep.

A training loop decides when to call it:

    drawn = replay.draw(step, size, next_question)  # then generate
    choice = replay.choose(replay.candidates(drawn.replayed), scorer)  # a past success for each
    metrics = replay.observe(step, groups, choice.metrics(step))  # store, retire, expire
    state = replay.state()  # with pool and groups all that a resumed run needs

With `exp_unit=group` a draw has whole past groups instead of replayed questions:
`replay.admit(drawn.stored, scorer)`; with `exp_place=dead` they are `replay.stand_ins(rewards)`,
once the rollouts are judged. With `exp_unit=prompt` a draw has the questions alone, as fresh ones.
With `exp_place=beside` a draw has questions whose successes are `replay.rehearse(drawn.rehearsed,
scorer)`, rows that belong to no group. With `exp_unit=prefix` some of the fresh questions have
a prefix, `drawn.prefixes`, which all of their rollouts continue.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from exgrpo.experience import checked
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_bucket_manager import DrawCount
from exgrpo.experience.experience_helpers import FreshQuestions, NextQuestion, mean_square
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.group_buffer import GroupBuffer, StoredGroup
from exgrpo.experience.prefixes import Prefix, Prefixes
from exgrpo.experience.question_memory import (
    SOLVED,
    QuestionDraw,
    QuestionMemory,
    group_weights,
)
from exgrpo.experience.replay_log import LoggedReplay
from exgrpo.experience.replayed_group import NO_ODDS, Odds, ReplayedGroup
from exgrpo.experience.rules import BUCKET
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.experience.trajectory_selector import (
    Choice,
    Scorer,
    TrajectorySelector,
    choose_trajectories,
)

logger = logging.getLogger(__name__)


class Draw(NamedTuple):
    """The questions of a step, or of a later part of it; no question is in a step twice.

    Attributes:
        replayed: questions whose groups get one past success; generate K - 1 rollouts of each.
        fresh: questions to generate K rollouts of.
        mixed: whether mixing had begun when the step was drawn: its loss is then mixed.
        stored: with `exp_unit=group` past groups instead; nothing is generated for them.
        rehearsed: with `exp_place=beside` questions instead, K of them for one of the step's, with
            the odds of each; nothing is generated for them, and one may be among the fresh ones.
        prefixes: with `exp_unit=prefix` fresh questions, the first ones -> what their rollouts
            continue.
    """

    replayed: list[str]
    fresh: list[str]
    mixed: bool
    stored: Sequence[StoredGroup] = ()
    rehearsed: Mapping[str, Odds] = MappingProxyType({})
    prefixes: Mapping[str, Prefix] = MappingProxyType({})


class ExperienceReplay:
    """Pool, selection, random generator, delayed start and fresh questions of one training run.

    Args:
        config: with `experience` False nothing is replayed or kept.
        questions: ids of the data set's questions.
        pool: to start from; default: an empty pool. Owned by this object from here on.
        rng: used for every draw of questions and for random selection; default: seeded with
            `config.exp_seed`. Callers may use it for other draws, such as a batch's order.

    Attributes:
        pool, rng: as above.
        groups: the past groups that may be drawn; empty unless `exp_unit=group` or `prefix`.
        memory: of the questions; empty unless a rule looks at it.
        prefixes: where rollouts are cut; empty unless `exp_unit=prefix`.
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
        self.groups = GroupBuffer(config.experience_max_groups, config.experience_max_age)
        self.memory, self.prefixes = QuestionMemory(), Prefixes()
        self._by_rule: QuestionDraw | None = None
        if config.exp_question_choice != BUCKET:
            self._by_rule = QuestionDraw(config.exp_question_choice, self.memory)
        self.mixing = config.experience and config.experience_start_sratio == 0
        self._questions = questions
        self._fresh = FreshQuestions(self.pool, questions, config.experience_skip_retired)
        self._selector = TrajectorySelector(config.exp_metric, config.exp_select_mode)
        self._step = -1  # the step that `_drawn` and `_mixed` describe
        self._drawn: list[str] = []
        self._mixed = False
        self._draws_by_bucket = DrawCount(config.rollout_n)
        self._odds: dict[str, Odds] = {}  # question -> those of its draw, until its choice
        self._replayed: list[ReplayedGroup] = []  # of the step that is under way

    def draw(
        self,
        step: int,
        size: int,
        next_question: NextQuestion,
        in_flight: Collection[str] | None = None,
        ahead: bool = False,
    ) -> Draw:
        """rho * size replayed questions, or all eligible ones, the rest fresh; none is drawn twice.

        With `exp_unit=group` rho * size past groups instead, of distinct questions (none with
        `exp_place=dead`); with `exp_unit=prompt` the same questions as for `trajectory`, the first
        of the fresh ones.

        A second draw in the same step, such as for groups that failed, has fresh questions only.

        Args:
            in_flight: for asynchronous generation: the questions of all earlier draws that have not
                been observed yet. None is drawn, and each draw has its share of replayed ones.
            ahead: these prompts are for later steps: without past groups, which belong to the step
                that trains on them.
            next_question: returns the data set's next question and whether it begins a new epoch; a
                question that cannot be used in this step is used in the next.

        Raises:
            RuntimeError: the step needs more questions than the data set has.
        """
        replayed: list[str] = []
        questions_alone: list[str] = []
        stored: list[StoredGroup] = []
        rehearsed: dict[str, Odds] = {}
        prefixes: dict[str, Prefix] = {}
        # The first draw of a step has its share from the pool. In asynchronous generation every
        # draw is a step's first; what is still out is then barred like what is drawn already.
        if self._step != step or in_flight is not None:
            self._step, self._drawn, self._mixed = step, list(in_flight or ()), self.mixing
            # what came back without a choice, or never, has odds no more
            self._odds = {each: self._odds[each] for each in self._drawn if each in self._odds}
            if self.mixing:
                count = self._share(size)
                barred = frozenset([*self._fresh.deferred, *self._drawn])
                if self.config.whole_groups:
                    count = 0 if ahead or self.config.exp_place == "dead" else count
                    stored = self._past_groups(count, barred)
                elif self.config.exp_unit == "prefix":
                    prefixes = self._cut(self._past_groups(count, barred))
                    questions_alone = [*prefixes]
                elif self.config.rehearses:
                    rehearsed = {} if ahead else self._to_rehearse(count)
                else:
                    odds = self._questions_of_pool(count, barred)
                    if self.config.exp_unit == "prompt":
                        questions_alone = [*odds]
                    else:
                        replayed = [*odds]
                        self._odds |= odds
        from_pool = [*replayed, *questions_alone, *(group.question for group in stored)]
        if self.config.remembers:
            self.memory.drawn([*from_pool, *rehearsed], step)
        drawn = frozenset([*from_pool, *self._drawn])
        # what the pool could not give is asked afresh
        given = len(from_pool) + len(rehearsed) // self.config.rollout_n
        missing, left = size - given, len(self._questions) - len(drawn)
        if missing > left:
            needs = f"step {step} needs {missing} more questions"
            raise RuntimeError(f"{needs}, {left} are not in it yet")
        fresh = self._fresh.take(missing, drawn, next_question)
        self._drawn += from_pool + fresh
        fresh = questions_alone + fresh
        return Draw(replayed, fresh, self._mixed, stored, rehearsed=rehearsed, prefixes=prefixes)

    def _questions_of_pool(self, count: int, barred: Collection[str]) -> dict[str, Odds]:
        """Up to `count` questions to replay, in the order of the draw, with the odds of each."""
        if self._by_rule is not None:
            odds = self._by_rule.choose(self.pool, count, self.rng, barred, self._step)
        else:
            chosen = self.pool.choose(count, self.rng, exclude=barred)
            odds = self.pool.odds(chosen, barred)
        self._draws_by_bucket.add(each.bucket for each in odds.values())
        return odds

    def _to_rehearse(self, count: int) -> dict[str, Odds]:
        """K questions for each of `count` places, as far as the pool has so many."""
        k = self.config.rollout_n
        odds = self._questions_of_pool(min(count, self.pool.eligible // k) * k, frozenset())
        # a rule that forbids some leaves a place half full
        return dict(itertools.islice(odds.items(), len(odds) // k * k))

    def _cut(self, groups: Sequence[StoredGroup]) -> dict[str, Prefix]:
        """A prefix of each group's question; those that have none are left out."""
        today = self.memory.columns([group.question for group in groups])[:, SOLVED].tolist()
        threshold, found = self.config.exp_success_threshold, {}
        for group, solved in zip(groups, today, strict=True):
            then = float(np.mean([one.reward > threshold for one in group.rollouts]))
            rate = then if math.isnan(solved) else solved
            if prefix := self.prefixes.cut(group, rate, threshold, self.rng):
                found[group.question] = prefix
        return found

    def _past_groups(self, count: int, barred: Collection[str]) -> list[StoredGroup]:
        """Up to `count` past groups by `exp_group_choice`."""
        name, threshold = self.config.exp_group_choice, self.config.exp_success_threshold
        weights = None
        if name != "uniform":
            weights = group_weights(name, [*self.groups], self.memory, threshold, self._step)
        return self.groups.choose(count, self.rng, exclude=barred, weights=weights)

    def _share(self, size: int) -> int:
        """rho of so many, rounded down."""
        # .29 * 100 is below 29 in binary
        return math.floor(self.config.experience_ratio * size + 1e-9)

    def stand_ins(
        self, rewards: Mapping[str, Sequence[float]], elsewhere: Collection[str] = frozenset()
    ) -> dict[str, StoredGroup]:
        """Question of a dead group -> a past group of another question to `admit` and to train on
        in its place (`exp_place=dead`), once mixing has begun; for rho of the groups at most.

        Args:
            rewards: question -> those of its fresh rollouts; dead if they are all equal.
            elsewhere: other questions of the step, of which no past group may stand in.
        """
        if self.config.exp_place != "dead" or not self.mixing:
            return {}
        dead = [question for question, each in rewards.items() if len(set(each)) == 1]
        count = min(len(dead), self._share(len(rewards)))
        chosen = self._past_groups(count, {*rewards, *elsewhere})
        return dict(zip(dead, chosen, strict=False))

    def admit(
        self,
        stored: Sequence[StoredGroup],
        scorer: Scorer,
        elsewhere: Collection[str] = frozenset(),
    ) -> list[ReplayedGroup]:
        """The groups that the policy has not drifted away from (`exp_max_drift`); others go. With
        an `exp_group_choice` but uniform others are drawn in their place, as long as there are any.

        Args:
            scorer: called with all rollouts of the groups in order, and again with those of groups
                that are drawn anew; not at all without `exp_max_drift`.
            elsewhere: questions of which none is drawn anew: those that the step asks.
        """
        bound, admitted, waiting = self.config.exp_max_drift, list[StoredGroup](), list(stored)
        while waiting:
            close, left_behind = waiting, list[StoredGroup]()
            if bound is not None:
                close = []
                rollouts = [(each.question, one) for each in waiting for one in each.rollouts]
                scores = iter(scorer(rollouts))
                for group in waiting:
                    ratios = [each.log_ratios(next(scores).log_probs) for each in group.rollouts]
                    drifted = mean_square(np.concatenate(ratios)) > bound
                    (left_behind if drifted else close).append(group)
                self.groups.drop(left_behind)
            admitted += close
            barred = {*elsewhere, *self._drawn, *(group.question for group in admitted)}
            count = len(left_behind) if self.config.exp_group_choice != "uniform" else 0
            waiting = self._past_groups(count, barred) if count else []
        groups = [ReplayedGroup.whole(group) for group in admitted]
        self._replayed += groups
        return groups

    def rehearse(self, rehearsed: Mapping[str, Odds], scorer: Scorer) -> Choice:
        """Choose the success of each of these questions that is still in the pool, as `choose`.

        Args:
            rehearsed: of a draw, or a part of it.
        """
        present = {question: odds for question, odds in rehearsed.items() if question in self.pool}
        self._odds |= present
        return self.choose(self.candidates(present), scorer)

    def rescuable(self, failed: Iterable[str]) -> list[str]:
        """The failed questions that a stored success may join (`exp_rescue`)."""
        if not (self.config.exp_rescue and self._mixed):
            return []
        return [question for question in failed if question in self.pool]

    def candidates(self, questions: Iterable[str]) -> dict[str, tuple[Trajectory, ...]]:
        """Question -> its trajectories in the order of recording. KeyError if it has none."""
        return {question: self.pool.candidates(question) for question in questions}

    def choose(self, candidates: Mapping[str, Sequence[Trajectory]], scorer: Scorer) -> Choice:
        """Choose a trajectory per question by its current score (`choose_trajectories`).

        The caller may fill the records of the choice until `observe`, which logs them.

        Args:
            candidates: for questions whose group has at least one fresh rollout that came back.
            scorer: scores candidates under the current policy; called at most once.
        """
        drift = self.config.exp_max_drift
        choice = choose_trajectories(candidates, self._selector, scorer, self.rng, drift)
        odds = {question: self._odds.pop(question, NO_ODDS) for question in candidates}
        for group in choice.groups:
            group.odds = odds[group.question]
        self._replayed += choice.groups
        return choice

    def observe(
        self, step: int, groups: Sequence[RolloutGroup], noted: Mapping[str, float]
    ) -> dict[str, float]:
        """Take in the results of a step's fresh rollouts, and close the step.

        Mixing begins, for good, with the step after the first whose share of correct rollouts
        exceeds experience_start_sratio: that step is the first to be collected, and the one after
        it can replay (as released). Retiring begins with collecting.

        Args:
            noted: other measurements; kept in the pool's history beside its own metrics.

        Returns:
            fresh_score, mixing (whether this step's draw was mixed), refused, how many of its
            questions were drawn from each bucket, and the pool's metrics.
        """
        continued = [group for group in groups if group.prefix]
        groups = [group for group in groups if not group.prefix] if continued else groups
        rollouts = sum(group.size for group in groups)
        score = sum(group.solved for group in groups) / max(rollouts, 1)
        if self.config.remembers:
            self.memory.observe(groups, step)
        if self._by_rule is not None:
            self._by_rule.observe(step, groups)
        if self.mixing:
            for group, bucket in zip(groups, self.pool.buckets_of(groups), strict=True):
                self.pool.observe(group, bucket)
                if self.config.keeps_groups:
                    self.groups.add(group, step)
            self.groups.expire(step)
        elif self.config.experience and score > self.config.experience_start_sratio:
            begins = "mixing begins with the next"
            logger.warning("step %d: %.3f of the rollouts are correct, %s", step, score, begins)
            self.mixing = True
        measured = {
            "fresh_score": score,
            "mixing": float(self._mixed),
            "refused": float(sum(group.refused for group in groups)),
            **self._draws_by_bucket.metrics(),
        }
        if self.config.exp_unit == "prefix":
            measured |= self._continued(continued)
        self.pool.replays.add([LoggedReplay.of(group, step) for group in self._replayed])
        self._replayed = []
        return measured | self.pool.end_step(step, {**noted, **measured})

    def _continued(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Move the cuts; how many groups went on from a prefix, their mean score and next cut."""
        self.prefixes.observe(groups)
        shares = [self.prefixes.share(group.question) for group in groups] or [0.0]
        rollouts = max(1, sum(group.size for group in groups))
        return {
            "prefix_groups": float(len(groups)),
            "prefix_score": sum(group.solved for group in groups) / rollouts,
            "prefix_share": float(np.mean(shares)),
        }

    @property
    def exhausted(self) -> bool:
        """Whether all questions of the data set are retired: nothing is left to learn from."""
        return self._fresh.exhausted

    def state(self) -> dict[str, Any]:
        """What a resumed run needs besides pool and `groups`, as JSON values."""
        return {
            "mixing": self.mixing,
            "rng": self.rng.bit_generator.state,
            "deferred": self._fresh.deferred,
            "skipped": self._fresh.skipped,
            "odds": self._odds,  # of questions in flight
            **({} if self._by_rule is None else {"question_choice": self._by_rule.state()}),
            **({"cuts": self.prefixes.state()} if self.config.exp_unit == "prefix" else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`; what else it holds is of keys that 0.2.0 had, and is ignored."""
        if not isinstance(state["mixing"], bool):
            raise ValueError(f"mixing={state['mixing']!r}: must be True or False")
        self.mixing = state["mixing"]
        self.rng.bit_generator.state = state["rng"]
        self._fresh.deferred = [each for each in state["deferred"] if each in self._questions]
        self._fresh.skip(checked.integer("skipped", state["skipped"], 0))
        self._odds = {question: Odds(*each) for question, each in state.get("odds", {}).items()}
        self.prefixes.restore(state.get("cuts", {}))
        if self._by_rule is not None:
            self._by_rule.restore(state.get("question_choice"))
