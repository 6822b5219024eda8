"""Which of a question's trajectories is replayed (section 4.1): prefilter, score, guard, select."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience.experience_helpers import mean_square, vector_of
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.rules import METRICS, RANDOM, Metric
from exgrpo.experience.trajectory import Trajectory


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
            allowed = f"must be that of entropies, {values_T.shape}"
            raise ValueError(f"mask has shape {keep_T.shape}: {allowed}")
        values_T = values_T[keep_T]
    if values_T.size == 0:
        raise ValueError("mask excludes every token: must keep at least one")
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
            raise ValueError(f"mode={mode}: must be one of argmin, argmax")
        self._mode = mode

    @property
    def needs_scores(self) -> bool:
        """False if the choice ignores the scores, so that they need not be computed."""
        return self.metric is not None

    def prefilter(
        self, candidates: Sequence[Trajectory], limit: int | None
    ) -> tuple[Trajectory, ...]:
        """The `limit` candidates with the best recorded scores, in order; unknown is the best.

        A recorded score is the metric under the policy that generated the trajectory: it is free,
        but does not reflect what the policy has learnt since. Only the mean entropy was recorded;
        it stands for the entropy of each token.

        Args:
            limit: None keeps all, and so does the metric `random`.
        """
        if limit is None or len(candidates) <= limit or self.metric is None:
            return tuple(candidates)
        recorded = np.array([self._recorded(self.metric, trajectory) for trajectory in candidates])
        recorded = recorded if self._mode == "argmin" else -recorded
        best = np.argsort(np.where(np.isnan(recorded), -np.inf, recorded), kind="stable")[:limit]
        return tuple(candidates[position] for position in sorted(best.tolist()))

    def _recorded(self, metric: Metric, trajectory: Trajectory) -> float:
        log_probs_T = trajectory.of_actions(trajectory.log_probs)
        entropies_T = np.broadcast_to(trajectory.entropy, log_probs_T.shape)
        return metric(entropies_T, log_probs_T, trajectory)

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
            allowed = "must hold at least one number"
            raise ValueError(f"scores of {values.size} candidates are all NaN: {allowed}")
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
    max_candidates: int | None = None,
    max_drift: float | None = None,
) -> Choice:
    """One pass of the current policy over the candidates (section 4.1), then the choice.

    Only the candidates of a question that the prefilter leaves are scored. A question with a single
    candidate needs no score, unless `max_drift` requires its importance ratios.

    Args:
        candidates: question -> its trajectories.
        scorer: called at most once.
        rng: advanced by random selection only, once for each question with more than one candidate.
        max_candidates, max_drift: see `exp_max_candidates` and `exp_max_drift` of ExperienceConfig.

    Raises:
        ValueError: not one score a candidate, or all scores of a question are NaN.
    """
    left = {name: selector.prefilter(known, max_candidates) for name, known in candidates.items()}
    scores = _token_scores(left, selector, scorer, guards=max_drift is not None)
    groups, guarded = [], 0
    for question, known in left.items():
        seen = zip(known, scores.get(question, [None] * len(known)), strict=True)
        # a candidate that the policy has left behind would enter the loss with a useless ratio
        close = [each for each in seen if max_drift is None or _is_close(*each, max_drift)]
        guarded += len(known) - len(close)
        values = _metric_of(close, selector)
        # a single one needs no choice, and no random number: seeded draws rely on that
        chosen = selector.choose(values, rng) if len(close) > 1 else 0
        if close:
            compared = selector.needs_scores and len(close) > 1
            pairs = zip(close, values, strict=True) if compared else ()
            score_of = {id(one): value for (one, _), value in pairs}
            all_of_it = candidates[question]  # the record has those too that were not scored
            at = next(i for i, each in enumerate(all_of_it) if each is close[chosen][0])
            every = [score_of.get(id(each), math.nan) for each in all_of_it]
            groups.append(ReplayedGroup(question, all_of_it, at, every))
    total, scored = (sum(map(len, each.values())) for each in (candidates, scores))
    return Choice(groups, total, scored, guarded)


def _token_scores(
    left: Mapping[str, Sequence[Trajectory]],
    selector: TrajectorySelector,
    scorer: Scorer,
    guards: bool,
) -> dict[str, list[TokenScores]]:
    """Question -> scores of its candidates, only for questions whose choice depends on them."""
    needs = selector.needs_scores
    scored = [name for name, known in left.items() if guards or (needs and len(known) > 1)]
    flat = [(question, trajectory) for question in scored for trajectory in left[question]]
    scores = list(scorer(flat)) if flat else []
    if len(scores) != len(flat):
        given = f"scorer gave {len(scores)} scores of {len(flat)} candidates"
        raise ValueError(f"{given}: must be one each")
    remaining = iter(scores)
    return {question: [next(remaining) for _ in left[question]] for question in scored}


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


def _is_close(trajectory: Trajectory, seen: TokenScores | None, max_drift: float) -> bool:
    """Whether the policy is still close to the author; always without recorded log-probs."""
    if seen is None or not trajectory.has_log_probs:
        return True
    return mean_square(trajectory.log_ratios(seen.log_probs)) <= max_drift
