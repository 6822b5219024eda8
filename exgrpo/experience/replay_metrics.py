"""The numbers of a step's replay, by the names the README explains. Always the same keys, zeros where nothing was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from exgrpo.experience.trajectory import Trajectory

if TYPE_CHECKING:
    from exgrpo.experience.experience_trainer_ops import Scored


def replay_metrics(
    scored: Scored, positions: Mapping[str, int], replayed: Mapping[str, Trajectory], step: int
) -> dict[str, float]:
    """Metrics of what was replayed in ``step``: counts, ages in steps, scores of chosen and passed-over candidates."""
    ages: list[float] = [step - trajectory.step for trajectory in replayed.values()]
    chosen = [float(scored.scores[uid][at]) for uid, at in positions.items() if len(scored.scores[uid])]
    passed = [np.delete(scored.scores[uid], at) for uid, at in positions.items() if len(scored.scores[uid])]
    others = np.concatenate(passed) if passed else np.zeros(1)
    return {
        "experience/replayed_groups": float(len(replayed)),
        "experience/replayed_response_length": float(np.mean([len(t.tokens) for t in replayed.values()] or [0])),
        "experience/replay_age": float(np.mean(ages or [0])),
        "experience/replay_age_p95": float(np.quantile(ages or [0], 0.95)),
        "experience/candidates": float(sum(len(found) for found in scored.trajectories.values())),
        "experience/candidates_scored": float(scored.rows),
        "experience/chosen_score": float(np.mean(chosen or [0])),
        "experience/passed_over_score": float(np.mean(others)),
    }
