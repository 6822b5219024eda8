"""Choose one trajectory for each replayed question: pre-filter, score under the current policy, guard, select."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import TrajectorySelector, effective_sample_size

Candidate = tuple[str, Trajectory]  # question, one of its trajectories


class View(NamedTuple):
    """A trajectory under the current policy.

    Attributes:
        entropies: [T], entropy of the policy's distribution at each token, in nats.
        log_probs: [T], natural log, of the trajectory's tokens.
    """

    entropies: npt.NDArray[Any]
    log_probs: npt.NDArray[Any]


Look = Callable[[Sequence[Candidate]], Sequence[View]]  # the views of n candidates, in their order; one call a step


@dataclass(frozen=True)
class Choice:
    """What is replayed in a step.

    Attributes:
        trajectories: question -> the trajectory that joins its group; a question with no candidate left is absent.
        chosen_scores, passed_over_scores: scores of the candidates that were compared.
        candidates: number of candidates.
        scored: number of candidates that the current policy scored.
        guarded: number passed over because the policy has drifted away from their author.
        compared: question -> its candidates that were compared, and their scores; only where there was a choice.
    """

    trajectories: dict[str, Trajectory]
    chosen_scores: list[float]
    passed_over_scores: list[float]
    candidates: int
    scored: int
    guarded: int
    compared: Mapping[str, Sequence[tuple[Trajectory, float]]] = field(default_factory=dict)

    def metrics(self, step: int) -> dict[str, float]:
        """Counts, ages in steps and scores; always the same keys, zeros where nothing was replayed."""
        return step_metrics([self], step)


def step_metrics(choices: Sequence[Choice], step: int) -> dict[str, float]:
    """`Choice.metrics` of a step with several updates, each with a choice: sums of counts, means over all."""
    replayed = [trajectory for choice in choices for trajectory in choice.trajectories.values()]
    ages = [step - trajectory.step for trajectory in replayed] or [0]
    lengths = [len(trajectory) for trajectory in replayed] or [0]
    chosen = [score for choice in choices for score in choice.chosen_scores]
    passed_over = [score for choice in choices for score in choice.passed_over_scores]
    return {
        "replayed_groups": float(len(replayed)),
        "replayed_response_length": float(np.mean(lengths)),
        "replay_age": float(np.mean(ages)),
        "replay_age_p95": float(np.quantile(ages, 0.95)),
        "candidates": float(sum(choice.candidates for choice in choices)),
        "candidates_scored": float(sum(choice.scored for choice in choices)),
        "candidates_guarded": float(sum(choice.guarded for choice in choices)),
        "chosen_score": float(np.mean(chosen or [0])),
        "passed_over_score": float(np.mean(passed_over or [0])),
    }


def choose_trajectories(
    candidates: Mapping[str, Sequence[Trajectory]],
    selector: TrajectorySelector,
    look: Look,
    rng: np.random.Generator,
    max_candidates: int | None = None,
    max_drift: float | None = None,
) -> Choice:
    """One pass of the current policy over the candidates (section 3.2: under pi_theta, each step), then the choice.

    Only the most promising candidates of a question are scored. A question with a single candidate needs no score,
    unless `max_drift` requires its importance ratios.

    Args:
        candidates: question -> its trajectories.
        look: called at most once.
        rng: advanced by random selection only, once for each question with more than one candidate.
        max_candidates, max_drift: see `exp_max_candidates` and `exp_max_drift` of ExperienceConfig.

    Raises:
        ValueError: the number of views is not the number of candidates, or all scores of a question are NaN.
    """
    left = {question: selector.promising(known, max_candidates) for question, known in candidates.items()}
    guards = max_drift is not None
    views = _views(left, selector, look, guards)
    picks: dict[str, _Pick] = {}
    for question, known in left.items():
        seen = views.get(question, [None] * len(known))
        compared = [
            (trajectory, view)
            for trajectory, view in zip(known, seen, strict=True)
            if max_drift is None or _is_close(trajectory, view, max_drift)
        ]
        scores = _scores(compared, selector)
        position = selector.choose(scores, rng) if len(compared) > 1 else 0
        picks[question] = _Pick([trajectory for trajectory, _ in compared], scores, position)
    scored = sum(map(len, views.values()))
    had_a_choice = {question: pick for question, pick in picks.items() if selector.needs_scores and len(pick.left) > 1}
    return Choice(
        {question: pick.left[pick.position] for question, pick in picks.items() if pick.left},
        [pick.scores[pick.position] for pick in had_a_choice.values()],
        [score for pick in had_a_choice.values() for score in pick.passed_over],
        candidates=sum(map(len, candidates.values())),
        scored=scored,
        guarded=scored - sum(len(picks[question].left) for question in views),
        compared={question: list(zip(pick.left, pick.scores, strict=True)) for question, pick in had_a_choice.items()},
    )


class _Pick(NamedTuple):
    """The candidates of a question that are left after the guards, their scores, and which is chosen."""

    left: list[Trajectory]
    scores: list[float]
    position: int

    @property
    def passed_over(self) -> list[float]:
        return self.scores[: self.position] + self.scores[self.position + 1 :]


def _views(
    left: Mapping[str, Sequence[Trajectory]], selector: TrajectorySelector, look: Look, guards: bool
) -> dict[str, list[View]]:
    """Question -> views of its candidates, only for questions whose choice depends on them."""
    scored_questions = [
        question for question, known in left.items() if guards or (selector.needs_scores and len(known) > 1)
    ]
    flat = [(question, trajectory) for question in scored_questions for trajectory in left[question]]
    views = list(look(flat)) if flat else []
    if len(views) != len(flat):
        raise ValueError(f"look gave {len(views)} views of {len(flat)} candidates: must be one each")
    remaining = iter(views)
    return {question: [next(remaining) for _ in left[question]] for question in scored_questions}


def _scores(compared: Sequence[tuple[Trajectory, View | None]], selector: TrajectorySelector) -> list[float]:
    """The metric of each candidate under the current policy; zeros where nothing is compared."""
    if selector.metric is None or len(compared) == 1:
        return [0.0] * len(compared)
    return [
        selector.metric(trajectory.of_actions(view.entropies), trajectory.of_actions(view.log_probs), trajectory)
        for trajectory, view in compared
        if view is not None  # never None here: a question with several candidates was scored
    ]


def _is_close(trajectory: Trajectory, view: View | None, max_drift: float) -> bool:
    """Whether the policy is still close enough to the author; always so without recorded log-probs."""
    if view is None or not trajectory.has_log_probs:
        return True
    return mean_square(trajectory.of_actions(view.log_probs - trajectory.log_probs)) <= max_drift


def mean_square(log_ratios: npt.NDArray[Any]) -> float:
    """The drift of a response or group: the mean of (log w)^2 over its tokens."""
    return float(np.square(np.asarray(log_ratios, dtype=np.float64)).mean())


def ratio_metrics(log_ratios: npt.NDArray[np.float32]) -> dict[str, float]:
    """Importance ratios w = pi_current / pi_past of a step's replayed tokens, before the first update.

    Args:
        log_ratios: [tokens], natural log; empty if nothing was replayed.
    """
    logs = np.asarray(log_ratios if len(log_ratios) else [0.0], dtype=np.float64)
    low, median, high = np.exp(np.quantile(logs, [0.05, 0.5, 0.95]))
    return {
        "ratio_mean": float(np.exp(logs).mean()),
        "ratio_p05": float(low),
        "ratio_median": float(median),
        "ratio_p95": float(high),
        "ratio_ess": effective_sample_size(logs),
        "ratio_beyond_2": float((np.abs(logs) > np.log(2)).mean()),
    }
