"""Statistics of a saved pool from one pass over its trajectories, and their text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved.pool_files import SavedPool
from exgrpo_tools.inspect.questions import Question

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BAR = 40  # columns of the longest bar
MOST = 5  # number of questions listed


@dataclass(frozen=True)
class Overview:
    """Statistics of a saved pool; arrays are [N] over its trajectories, in the order of recording.

    Attributes:
        saved: the pool.
        ages, lengths, entropies: steps since generation; tokens; nats (NaN if unknown).
        unrecorded: number of trajectories without log-probs.
        held: question -> its number of trajectories.
        kept: the trajectories of the selected questions, in the order of recording.
    """

    saved: SavedPool
    ages: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    entropies: npt.NDArray[np.float64]
    unrecorded: int
    held: Counter[str]
    kept: dict[str, list[Trajectory]]

    @property
    def step(self) -> int:
        return int(self.saved.manifest["step"])

    @property
    def rollout_n(self) -> int:
        return int(self.saved.manifest["rollout_n"])

    @property
    def sizes(self) -> list[int]:
        """Questions in each bucket, [K + 1]."""
        return np.bincount(self.saved.state.buckets, minlength=self.rollout_n + 1).tolist()


def read_overview(saved: SavedPool, selected: Container[str]) -> Overview:
    """One pass over the segments, verifying their checksums; keeps the trajectories of the
    questions in `selected`.
    """
    step = int(saved.manifest["step"])
    ages: list[int] = []
    lengths: list[int] = []
    entropies: list[float] = []
    unrecorded = 0
    held: Counter[str] = Counter()
    kept: dict[str, list[Trajectory]] = {}
    for question, trajectory in saved.trajectories():
        ages.append(step - trajectory.step)
        lengths.append(len(trajectory))
        entropies.append(trajectory.entropy)
        held[question] += 1
        unrecorded += not trajectory.has_log_probs
        if question in selected:
            kept.setdefault(question, []).append(trajectory)
    return Overview(
        saved,
        np.array(ages, np.int64),
        np.array(lengths, np.int64),
        np.array(entropies, np.float64),
        unrecorded,
        held,
        kept,
    )


def facts(overview: Overview) -> dict[str, str]:
    """Origin and size of the pool, name -> text."""
    manifest = overview.saved.manifest
    count = len(overview.lengths)
    tokens = int(overview.lengths.sum())
    identity = {name: str(value)[:12] for name, value in manifest["identity"].items()}
    size = 8 * tokens + 200 * count
    taken = overview.saved.quarantined
    stored = manifest["counts"].get("groups")
    groups = (
        {"past groups": f"{stored:,} whole ones, for replay without generation"} if stored else {}
    )
    quarantined = (
        {"in quarantine": f"{taken:,} trajectories, --quarantine --undo puts back"} if taken else {}
    )
    return {
        "belongs to": ", ".join(f"{name} {value}" for name, value in identity.items())
        or "nothing named",
        "step": f"{overview.step:,}, {overview.rollout_n} rollouts per question",
        "holds": f"{len(overview.held):,} questions, {count:,} trajectories, {tokens:,} tokens, "
        f"{size:,} bytes",
        "log-probs": f"{count - overview.unrecorded:,} trajectories with log-probs, "
        f"{overview.unrecorded:,} without",
        "retired": f"{len(overview.saved.state.retired):,} questions",
        **groups,
        "since the start": "trajectories: " + _counters(manifest["counters"]),
    } | quarantined


def _counters(counters: Mapping[str, int]) -> str:
    """The counters since the start of training, in trajectories."""
    evicted = {
        name.removeprefix("evicted_by_"): count
        for name, count in counters.items()
        if "evicted_by_" in name
    }
    by = ", ".join(f"{name} {count:,}" for name, count in evicted.items())
    others = ", ".join(
        f"{name} {count:,}" for name, count in counters.items() if "evicted_by_" not in name
    )
    return (
        f"{others}; evicted {sum(evicted.values()):,} (by the bound on {by})" if evicted else others
    )


def summary(overview: Overview, questions: Mapping[str, Question]) -> Iterator[str]:
    """The lines of the summary."""
    yield f"{'pool':16}{overview.saved.folder}"
    for name, text in facts(overview).items():
        yield f"{name:16}{text}"
    yield from ("", "successes       questions")
    highest = max([1, *overview.sizes])
    for bucket, size in enumerate(overview.sizes):
        bar = "█" * round(BAR * size / highest) or ("▏" if size else "")
        yield f"{f'{bucket} of {overview.rollout_n}':16}{size:9,}  {bar}".rstrip()
    if len(overview.lengths):
        yield from _quantile_table(overview)
        yield from ("", "most trajectories")
        for question, count in overview.held.most_common(MOST):
            yield f"{count:9,}  {question}  {_one_line(questions, question)}".rstrip()


def _quantile_table(overview: Overview) -> Iterator[str]:
    yield ""
    yield f"{'':16}" + "".join(f"{f'{share:.0%}':>10}" for share in QUANTILES) + f"{'highest':>10}"
    for name, values, digits in (
        ("age, steps", overview.ages, 0),
        ("length, tokens", overview.lengths, 0),
        ("entropy, nats", overview.entropies, 3),
    ):
        known = values[~np.isnan(values)]
        cells: list[Any] = [*np.quantile(known, QUANTILES), known.max()] if len(known) else []
        yield f"{name:16}" + ("".join(f"{cell:10,.{digits}f}" for cell in cells) or "   unknown")


def _one_line(questions: Mapping[str, Question], question: str) -> str:
    """The beginning of a question's text; empty if the data files are not known."""
    text = " ".join(questions[question].text.split()) if question in questions else ""
    return text if len(text) <= 60 else f"{text[:59]}…"


def question_lines(
    overview: Overview, name: str, questions: Mapping[str, Question], responses: list[str]
) -> Iterator[str]:
    """The lines on one question with its trajectories; `responses` are its kept trajectories,
    decoded.
    """
    state = overview.saved.state
    bucket = state.buckets[state.questions.index(name)]
    yield f"{'question':16}{name}"
    yield f"{'successes':16}{bucket} of {overview.rollout_n}"
    if name in questions:
        yield f"{'gold':16}{questions[name].gold}"
        yield from questions[name].text.splitlines()
    for number, (trajectory, response) in enumerate(
        zip(overview.kept[name], responses, strict=True), 1
    ):
        mean = (
            f"mean log-prob {trajectory.log_probs.mean():.4f}"
            if trajectory.has_log_probs
            else "no log-probs"
        )
        yield ""
        yield (
            f"--- {number} of {len(responses)}: step {trajectory.step}, {len(trajectory)} tokens, "
            f"entropy {trajectory.entropy:.4f}, {mean}"
        )
        yield from response.splitlines()
