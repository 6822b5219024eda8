"""A saved pool as one self-contained HTML page: its data is embedded as JSON and drawn by its own
script.

page.html, page.css, page.js, strips.js and pool_charts.js are in this folder; ../charts draws. Text
written by a model or from a data file is only in the JSON, whose brackets are escaped, and the
script shows it as text, never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.experience_helpers import effective_sample_size
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved.pool_files import SavedPool
from exgrpo_tools import charts
from exgrpo_tools.inspect.questions import Question
from exgrpo_tools.inspect.summary import Overview, facts
from exgrpo_tools.inspect.text import Decoder

MAX_POINTS = 600  # of a curve; a longer history is thinned
MAX_BARS = 30  # of a histogram
MAX_LOG_RATIO = 30.0  # of a token, so that a mean of ratios is finite
_CURVES = (
    *(
        "pool_questions",
        "retired_questions",
        "evicted_by_question",
        "evicted_by_size",
        "evicted_by_age",
    ),
    *(
        "age_median",
        "age_p95",
        "replay_age",
        "replay_age_p95",
        "chosen_score",
        "passed_over_score",
        "fresh_score",
    ),
    *("ratio_mean", "ratio_p05", "ratio_median", "ratio_p95", "ratio_ess", "ratio_beyond_2"),
)

Scores = Mapping[
    str, Sequence[npt.NDArray[np.float32]]
]  # question -> current log-probs of each of its trajectories


@dataclass(frozen=True)
class Sample:
    """The part of a pool that the page shows in full.

    Attributes:
        questions: in the order they were drawn; the last may show fewer trajectories than it has.
        limit: maximum number of trajectories.
        seed: of the draw.
    """

    questions: list[str]
    limit: int
    seed: int

    def cut(self, kept: Mapping[str, list[Trajectory]]) -> dict[str, list[Trajectory]]:
        """The trajectories to show, whole questions until the limit is reached."""
        shown: dict[str, list[Trajectory]] = {}
        room = self.limit
        for question in self.questions:
            trajectories = kept.get(question, [])[:room]
            if trajectories:
                shown[question] = trajectories
                room -= len(trajectories)
        return shown


def draw_sample(saved: SavedPool, limit: int, seed: int) -> Sample:
    """Draw questions uniformly, so that all candidates of a question are shown together. Each has
    at least one.
    """
    names = saved.state.questions
    chosen = np.random.default_rng(seed).permutation(len(names))[:limit]
    return Sample([names[position] for position in chosen], limit, seed)


def build_page(
    overview: Overview,
    sample: Sample,
    questions: Mapping[str, Question],
    decoder: Decoder,
    model: str | None,
    now: Scores,
    strips: Mapping[str, Any] | None = None,
) -> str:
    """The page's text.

    Args:
        questions: of the data files; a question that is not in them has no text on the page.
        model: the model of `now`; None if nothing was scored.
        now: log-probs of the trajectories of `sample.cut`; empty if nothing was scored.
        strips: what replay did (`strips.content`); None if nothing was replayed.
    """
    shown = sample.cut(overview.kept)
    state = overview.saved.state
    buckets = dict(zip(state.questions, state.buckets, strict=True))
    data = {
        "folder": str(overview.saved.folder),
        "step": overview.step,
        "tiles": _tiles(overview),
        "facts": facts(overview),
        "rollout_n": overview.rollout_n,
        "sizes": overview.sizes,
        "model": model,
        "history": _history(overview),
        "strips": strips,
        "histograms": _histograms(overview),
        "sample": {
            "trajectories": sum(map(len, shown.values())),
            "questions": len(shown),
            "seed": sample.seed,
        },
        "totals": {"trajectories": len(overview.lengths), "questions": len(overview.held)},
        "questions": [
            {
                "id": name,
                "bucket": buckets[name],
                "held": overview.held[name],
                **_words(questions.get(name)),
                "trajectories": _trajectories(trajectories, now.get(name), decoder),
            }
            for name, trajectories in shown.items()
        ],
    }
    return _fill(data)


def _words(question: Question | None) -> dict[str, str | None]:
    if question is None:
        return {"text": None, "gold": None}
    return {"text": question.text, "gold": question.gold}


def _tiles(overview: Overview) -> dict[str, str]:
    """The numbers at the top of the page, name -> text."""
    ages = f"{np.median(overview.ages):,.0f} steps" if len(overview.ages) else "none"
    return {
        "questions in the pool": f"{len(overview.held):,}",
        "trajectories": f"{len(overview.lengths):,}",
        "tokens": f"{int(overview.lengths.sum()):,}",
        "questions retired": f"{len(overview.saved.state.retired):,}",
        "median age": ages,
    }


def _fill(data: object) -> str:
    page = _part("page.html").replace("/*css*/", _part("page.css"))
    page = page.replace("/*charts*/", charts.script())
    page = page.replace("/*js*/", _part("page.js") + _part("strips.js") + _part("pool_charts.js"))
    return page.replace(
        "/*data*/", charts.embedded(data)
    )  # last, so that no placeholder in the data is replaced


def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _history(overview: Overview) -> dict[str, list[float | None]]:
    """Metric -> its value at each step shown; None if the step has no value, or nothing was
    replayed in it.
    """
    rows = overview.saved.history
    stride = max(1, math.ceil(len(rows) / MAX_POINTS))
    rows = rows[::-stride][::-1]  # always includes the last step
    names = ["step", *(f"bucket_{bucket}" for bucket in range(overview.rollout_n + 1)), *_CURVES]
    curves = {name: [_number(row, name) for row in rows] for name in names}
    return {
        name: values
        for name, values in curves.items()
        if any(value is not None for value in values)
    }


def _number(row: Mapping[str, float], name: str) -> float | None:
    """The value of a metric; None for the zeros of a step that replayed nothing, which are not
    measurements.
    """
    if name in ("chosen_score", "passed_over_score") and not row.get("candidates_scored"):
        return None
    if name.startswith(("replay_age", "ratio_")) and not row.get("replayed_groups"):
        return None
    value = row.get(name, math.nan)
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _histograms(overview: Overview) -> list[dict[str, Any]]:
    histograms = []
    for title, unit, values in (
        ("Ages", "steps since it was generated", overview.ages),
        ("Recorded entropies", "mean token entropy, nats", overview.entropies),
        ("Response lengths", "tokens", overview.lengths),
    ):
        known = values[~np.isnan(values)]
        if len(known) == 0:
            continue
        whole = known.dtype.kind == "i"  # ages and lengths
        bins: Any = MAX_BARS
        if whole:  # bins of an integer width, so that each bar covers equally many integers
            width = max(1, math.ceil((int(known.max()) - int(known.min()) + 1) / MAX_BARS))
            bins = np.arange(known.min(), known.max() + width + 1, width)
        counts, edges = np.histogram(known, bins)
        unknown = len(values) - len(known)
        histograms.append(
            {
                "title": title,
                "unit": unit,
                "counts": counts.tolist(),
                "edges": edges.tolist(),
                "unknown": unknown,
            }
        )
    return histograms


def _trajectories(
    trajectories: Sequence[Trajectory],
    now: Sequence[npt.NDArray[np.float32]] | None,
    decoder: Decoder,
) -> list[dict[str, Any]]:
    rows = []
    for index, trajectory in enumerate(trajectories):
        row: dict[str, Any] = {
            "step": trajectory.step,
            "entropy": None if math.isnan(trajectory.entropy) else round(trajectory.entropy, 5),
            "pieces": decoder.pieces(trajectory.tokens),
            "then": _thousandths(trajectory.log_probs) if trajectory.has_log_probs else None,
        }
        if now is not None:
            row["now"] = _thousandths(now[index])
            if trajectory.has_log_probs:
                logs = now[index].astype(np.float64) - trajectory.log_probs
                row["ratio"] = round(float(np.exp(np.minimum(logs, MAX_LOG_RATIO)).mean()), 5)
                row["ess"] = round(effective_sample_size(logs), 5)
        rows.append(row)
    return rows


def _thousandths(log_probs_T: npt.NDArray[np.float32]) -> list[int]:
    """Negative log-probs in thousandths of a nat: most take one or two digits in the page."""
    values: list[int] = np.rint(-1000 * log_probs_T.astype(np.float64)).astype(np.int64).tolist()
    return values
