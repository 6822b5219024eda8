"""Which of a question's trajectories is replayed (section 4.1): score, guard, select."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience.experience_helpers import mean_square, vector_of
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.rules import METRICS, RANDOM
from exgrpo.experience.trajectory import Trajectory
from exgrpo.refusal import refuse, refuse_as


def mean_entropy(entropies_T: npt.ArrayLike, mask_T: npt.ArrayLike | None = None) -> float:
    """Mean token entropy in nats, H(o) = -1/|o| sum_t sum_v pi(v|.) log pi(v|.), as released.

    Args:
        entropies_T: [T], the entropy in nats of the policy's distribution at each token.
        mask_T: [T], true at response tokens; default: all are. Excluded entries may hold any value.

    Raises:
        ValueError: shapes differ, or no response token is left.
    """
    values_T = vector_of("entropies", entropies_T)
    if mask_T is not None:
        keep_T = np.asarray(mask_T).astype(bool)
        if keep_T.shape != values_T.shape:
            refuse_as(f"mask has shape {keep_T.shape}", f"be that of entropies, {values_T.shape}")
        values_T = values_T[keep_T]
    if values_T.size == 0:
        refuse_as("mask excludes every token", "keep at least one")
    return float(values_T.mean())


def perplexity(log_probs_T: npt.ArrayLike) -> float:
    """exp of the mean negative log-likelihood, exp(-1/|o| sum_t log pi(o_t|.)) (section F.3).

    Args:
        log_probs_T: [T], natural log-probs of the response's tokens.

    Raises:
        ValueError: not 1-D or empty.
    """
    return float(np.exp(-vector_of("log_probs", log_probs_T).mean()))


class TrajectorySelector:
    """Chooses one candidate by its score.

    Args:
        metric: a name in exgrpo.experience.rules.METRICS (ent, ppl) or a reference to your own; or
            `random`, which draws uniformly.
        mode: whether the lowest score wins (`argmin`) or the highest (`argmax`).
    """

    def __init__(self, metric: str, mode: str) -> None:
        self.metric = None if metric == RANDOM else METRICS.load("metric", metric)
        if mode not in ("argmin", "argmax"):
            refuse("mode", mode, "one of argmin, argmax")
        self._mode = mode

    @property
    def needs_scores(self) -> bool:
        """False if the choice ignores the scores, so that they need not be computed."""
        return self.metric is not None

    def choose(self, scores: npt.ArrayLike, rng: np.random.Generator) -> int:
        """Index of the chosen candidate; ties go to the first, a NaN score is never chosen.

        Args:
            scores: [candidates], by the metric; `random` uses only their number.
            rng: used by `random` only; the other metrics do not advance it.

        Raises:
            ValueError: there are no candidates, or all scores are NaN.
        """
        values = vector_of("scores", scores)
        if not self.needs_scores:
            return int(rng.integers(values.size))
        # np.nanargmin would take a NaN for an infinite score
        known = np.flatnonzero(~np.isnan(values))
        if known.size == 0:
            refuse_as(f"scores of {values.size} candidates are all NaN", "hold at least one number")
        best = values[known].argmin() if self._mode == "argmin" else values[known].argmax()
        return int(known[best])


Candidate = tuple[str, Trajectory]  # question, one of its trajectories


class TokenScores(NamedTuple):
    """A trajectory under the current policy.

    Attributes:
        entropies: [T], entropy of the policy's distribution at each token, in nats.
        log_probs: [T], natural log, of the trajectory's tokens.
    """

    entropies: npt.NDArray[Any]
    log_probs: npt.NDArray[Any]


# of n candidates, in their order; one call a step
Scorer = Callable[[Sequence[Candidate]], Sequence[TokenScores]]


@dataclass(frozen=True)
class Choice:
    """What is replayed in a step.

    Attributes:
        groups: one record for each question that has a candidate left.
        candidates: number of candidates.
        scored: number of candidates that the current policy scored.
        guarded: number passed over because the policy has drifted away from their author.
    """

    groups: list[ReplayedGroup]
    candidates: int
    scored: int
    guarded: int

    @classmethod
    def together(cls, choices: Iterable[Choice]) -> Choice:
        """The choices of a step with several updates as one."""
        several = list(choices)
        groups = [group for choice in several for group in choice.groups]
        counts = [(each.candidates, each.scored, each.guarded) for each in several]
        return cls(groups, *np.array(counts, int).reshape(-1, 3).sum(0).tolist())

    @property
    def trajectories(self) -> dict[str, Trajectory]:
        """Question -> the trajectory that joins its group."""
        return {group.question: group.candidates[group.chosen] for group in self.groups}

    @property
    def chosen_scores(self) -> list[float]:
        """Of the chosen candidates that were compared with others."""
        return _known(group.scores[group.chosen] for group in self.groups)

    @property
    def passed_over_scores(self) -> list[float]:
        """Of the others that were compared."""
        return _known(
            score
            for group in self.groups
            for position, score in enumerate(group.scores)
            if position != group.chosen
        )

    def metrics(self, step: int) -> dict[str, float]:
        """Counts, ages in steps and scores; the same keys, with zeros, if nothing was replayed."""
        replayed = list(self.trajectories.values())
        ages = [step - trajectory.step for trajectory in replayed] or [0]
        return {
            "replayed_groups": float(len(replayed)),
            "replayed_response_length": float(np.mean([*map(len, replayed)] or [0])),
            "replay_age": float(np.mean(ages)),
            "replay_age_p95": float(np.quantile(ages, 0.95)),
            "candidates": float(self.candidates),
            "candidates_scored": float(self.scored),
            "candidates_guarded": float(self.guarded),
            "chosen_score": float(np.mean(self.chosen_scores or [0])),
            "passed_over_score": float(np.mean(self.passed_over_scores or [0])),
        }


def _known(scores: Iterable[float]) -> list[float]:
    return [score for score in scores if not math.isnan(score)]


def choose_trajectories(
    candidates: Mapping[str, Sequence[Trajectory]],
    selector: TrajectorySelector,
    scorer: Scorer,
    rng: np.random.Generator,
    max_drift: float | None = None,
) -> Choice:
    """One pass of the current policy over the candidates (section 4.1), then the choice.

    A question with a single candidate needs no score, unless `max_drift` requires its importance
    ratios.

    Args:
        candidates: question -> its trajectories.
        scorer: called at most once.
        rng: advanced by random selection only, once for each question with more than one candidate.
        max_drift: see `exp_max_drift` of ExperienceConfig.

    Raises:
        ValueError: not one score a candidate, or all scores of a question are NaN.
    """
    scores = _token_scores(candidates, selector, scorer, guards=max_drift is not None)
    groups, guarded = [], 0
    for question, known in candidates.items():
        seen = list(zip(known, scores.get(question, [None] * len(known)), strict=True))
        # a candidate that the policy has left behind would enter the loss with a useless ratio
        close = [at for at, each in enumerate(seen) if _is_close(*each, max_drift)]
        guarded += len(known) - len(close)
        if not close:
            continue
        values = _metric_of([seen[at] for at in close], selector)
        # a single one needs no choice, and no random number: seeded draws rely on that
        chosen = selector.choose(values, rng) if len(close) > 1 else 0
        every = [math.nan] * len(known)
        if selector.needs_scores and len(close) > 1:
            for at, value in zip(close, values, strict=True):
                every[at] = value
        groups.append(ReplayedGroup(question, known, close[chosen], every))
    total, scored = (sum(map(len, each.values())) for each in (candidates, scores))
    return Choice(groups, total, scored, guarded)


def _token_scores(
    candidates: Mapping[str, Sequence[Trajectory]],
    selector: TrajectorySelector,
    scorer: Scorer,
    guards: bool,
) -> dict[str, list[TokenScores]]:
    """Question -> scores of its candidates, only for questions whose choice depends on them."""
    needs = selector.needs_scores
    scored = [name for name, known in candidates.items() if guards or (needs and len(known) > 1)]
    flat = [(question, trajectory) for question in scored for trajectory in candidates[question]]
    scores = list(scorer(flat)) if flat else []
    if len(scores) != len(flat):
        refuse_as(f"scorer gave {len(scores)} scores of {len(flat)} candidates", "be one each")
    remaining = iter(scores)
    return {question: [next(remaining) for _ in candidates[question]] for question in scored}


def _metric_of(
    close: Sequence[tuple[Trajectory, TokenScores | None]], selector: TrajectorySelector
) -> list[float]:
    """The metric of each candidate under the current policy; zeros where nothing is compared."""
    if selector.metric is None or len(close) == 1:
        return [0.0] * len(close)
    return [
        selector.metric(one.of_actions(seen.entropies), one.of_actions(seen.log_probs), one)
        for one, seen in close
        if seen is not None  # never None here: a question with several candidates was scored
    ]


def _is_close(trajectory: Trajectory, seen: TokenScores | None, max_drift: float | None) -> bool:
    """Whether the policy is still close to the author; always without recorded log-probs."""
    if max_drift is None or seen is None or not trajectory.has_log_probs:
        return True
    return mean_square(trajectory.log_ratios(seen.log_probs)) <= max_drift
