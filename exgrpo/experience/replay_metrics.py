"""The numbers of a step's replay, by the names the README explains. Always the same keys, zeros where nothing was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import effective_sample_size

if TYPE_CHECKING:
    from exgrpo.on_verl.candidate_scoring import Scored


def replay_metrics(
    scored: Scored, positions: Mapping[str, int], replayed: Mapping[str, Trajectory], step: int
) -> dict[str, float]:
    """Metrics of what was replayed in ``step``: counts, ages in steps, scores of chosen and passed-over candidates."""
    ages: list[float] = [step - trajectory.step for trajectory in replayed.values()]
    chosen = [float(scored.scores[uid][at]) for uid, at in positions.items() if len(scored.scores[uid])]
    passed = [np.delete(scored.scores[uid], at) for uid, at in positions.items() if len(scored.scores[uid])]
    passed_over = scored.guarded + scored.prefiltered
    others = np.concatenate(passed) if passed else np.zeros(1)
    return {
        "experience/replayed_groups": float(len(replayed)),
        "experience/replayed_response_length": float(np.mean([len(t.tokens) for t in replayed.values()] or [0])),
        "experience/replay_age": float(np.mean(ages or [0])),
        "experience/replay_age_p95": float(np.quantile(ages or [0], 0.95)),
        "experience/candidates": float(sum(map(len, scored.trajectories.values())) + passed_over),
        "experience/candidates_scored": float(scored.rows),
        "experience/candidates_guarded": float(scored.guarded),
        "experience/chosen_score": float(np.mean(chosen or [0])),
        "experience/passed_over_score": float(np.mean(others)),
    }


def ratio_metrics(log_ratios: npt.NDArray[np.float32]) -> dict[str, float]:
    """Importance ratios w = pi_now / pi_past of a step's replayed tokens, before the first update.

    Args:
        log_ratios: [tokens], natural log; empty if nothing was replayed.
    """
    logs = np.asarray(log_ratios if len(log_ratios) else [0.0], dtype=np.float64)
    low, median, high = np.exp(np.quantile(logs, [0.05, 0.5, 0.95]))
    return {
        "experience/ratio_mean": float(np.exp(logs).mean()),
        "experience/ratio_p05": float(low),
        "experience/ratio_median": float(median),
        "experience/ratio_p95": float(high),
        "experience/ratio_ess": effective_sample_size(logs),
        "experience/ratio_beyond_2": float((np.abs(logs) > np.log(2)).mean()),
    }
