"""Of each replayed question one trajectory: who is considered, how the current policy sees them, and who is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import TrajectorySelector, effective_sample_size

Candidate = tuple[str, Trajectory]  # question, one of its trajectories


class View(NamedTuple):
    """How the current policy sees a trajectory.

    Attributes:
        entropies: [T] of its distribution at each token, in nats.
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
        chosen_scores, passed_over_scores: of candidates that were compared.
        candidates: how many there were.
        scored: how many the current policy looked at.
        guarded: how many were passed over for the effective sample size of their importance ratios.
    """

    trajectories: dict[str, Trajectory]
    chosen_scores: list[float]
    passed_over_scores: list[float]
    candidates: int
    scored: int
    guarded: int

    def metrics(self, step: int) -> dict[str, float]:
        """Counts, ages in steps and scores; always the same keys, zeros where nothing was replayed."""
        replayed = list(self.trajectories.values())
        ages = [step - trajectory.step for trajectory in replayed] or [0]
        return {
            "replayed_groups": float(len(replayed)),
            "replayed_response_length": float(np.mean([len(trajectory) for trajectory in replayed] or [0])),
            "replay_age": float(np.mean(ages)),
            "replay_age_p95": float(np.quantile(ages, 0.95)),
            "candidates": float(self.candidates),
            "candidates_scored": float(self.scored),
            "candidates_guarded": float(self.guarded),
            "chosen_score": float(np.mean(self.chosen_scores or [0])),
            "passed_over_score": float(np.mean(self.passed_over_scores or [0])),
        }


def choose_trajectories(
    candidates: Mapping[str, Sequence[Trajectory]],
    selector: TrajectorySelector,
    look: Look,
    rng: np.random.Generator,
    max_candidates: int | None = None,
    min_ess: float = 0.0,
) -> Choice:
    """One pass of the current policy over the candidates (section 3.2: under pi_theta, each step), then the choice.

    Of each question the most promising are looked at. A question that has one left is not, its choice is made; unless
    `min_ess` asks for the importance ratios of each.

    Args:
        candidates: question -> its trajectories.
        look: called once at most.
        rng: advanced by random selection alone, once a question with a choice.
        max_candidates, min_ess: see `exp_max_candidates` and `exp_min_ess` of ExperienceConfig.

    Raises:
        ValueError: not as many views as candidates, or no score of a question is a number.
    """
    left = {question: selector.promising(known, max_candidates) for question, known in candidates.items()}
    views = _views(left, selector, look, min_ess)
    trajectories: dict[str, Trajectory] = {}
    chosen_scores: list[float] = []
    passed_over_scores: list[float] = []
    for question, known in left.items():
        compared = [
            (trajectory, view)
            for trajectory, view in zip(known, views.get(question, [None] * len(known)), strict=True)
            if min_ess == 0 or _ess(trajectory, view) >= min_ess
        ]
        left[question] = tuple(trajectory for trajectory, _ in compared)
        if not compared:
            continue
        scores = _scores(compared, selector)
        position = 0 if len(compared) == 1 else selector.choose(scores, rng)
        trajectories[question] = compared[position][0]
        if len(compared) > 1 and selector.needs_scores:
            chosen_scores.append(scores[position])
            passed_over_scores += scores[:position] + scores[position + 1 :]
    scored = sum(map(len, views.values()))
    return Choice(
        trajectories,
        chosen_scores,
        passed_over_scores,
        candidates=sum(map(len, candidates.values())),
        scored=scored,
        guarded=scored - sum(len(left[question]) for question in views),
    )


def _views(
    left: Mapping[str, Sequence[Trajectory]], selector: TrajectorySelector, look: Look, min_ess: float
) -> dict[str, list[View]]:
    """Question -> views of its candidates; only of questions for which they matter."""
    asked = [name for name, known in left.items() if min_ess > 0 or (selector.needs_scores and len(known) > 1)]
    flat = [(question, trajectory) for question in asked for trajectory in left[question]]
    views = list(look(flat)) if flat else []
    if len(views) != len(flat):
        raise ValueError(f"look gave {len(views)} views of {len(flat)} candidates: must be one each")
    each = iter(views)
    return {question: [next(each) for _ in left[question]] for question in asked}


def _scores(compared: Sequence[tuple[Trajectory, View | None]], selector: TrajectorySelector) -> list[float]:
    """The metric of each under the current policy; zeros where nothing is compared."""
    if selector.metric is None or len(compared) == 1:
        return [0.0] * len(compared)
    return [
        selector.metric(trajectory.of_actions(view.entropies), trajectory.of_actions(view.log_probs), trajectory)
        for trajectory, view in compared
        if view is not None  # a question with a choice was looked at
    ]


def _ess(trajectory: Trajectory, view: View | None) -> float:
    """Of the importance ratios, as a share of the tokens; 1 where there is no author to compare with."""
    if view is None or not trajectory.has_log_probs:
        return 1.0
    return effective_sample_size(trajectory.of_actions(view.log_probs - trajectory.log_probs))


def ratio_metrics(log_ratios: npt.NDArray[np.float32]) -> dict[str, float]:
    """Importance ratios w = pi_now / pi_past of a step's replayed tokens, before the first update.

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
