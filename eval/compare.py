"""Runs side by side: what each scored, by how much the others differ from the first, and which questions flipped.

    python eval/compare.py A.jsonl B.jsonl [C.jsonl ...]

Markdown on stdout. Differences are paired: question by question, with 95 % intervals by a bootstrap that draws the same
questions for both runs, which is far sharper than two intervals beside each other. A question flips where its majority
answer is right in one run and not in the other; with one sample a question that is right or wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import graded_file
import numpy as np
from estimates import OVERALL, Scores, bootstrap, estimate, generator, intervals, score
from report_text import cell, number, plain

SHOWN_FLIPS = 20
PROMPT_END = 100  # characters of a question in the list of flips


@dataclass(frozen=True)
class Run:
    """A graded file: its scores by benchmark, and the prompt of each question."""

    name: str
    scores: dict[str, Scores]
    prompts: dict[tuple[str, str], str]


def load(path: Path) -> Run:
    """Read a file; ValueError or OSError where it is none."""
    rows = graded_file.read(path)
    return Run(path.stem, score(rows), {(row["question_id"], row["answer"]): row.get("prompt", "") for row in rows})


def align(runs: Sequence[Run], *, shared_only: bool) -> list[Run]:
    """The runs with the same benchmarks and questions in the same order.

    Raises:
        ValueError: their questions differ, and the shared part was not asked for, or there is none.
    """
    shared: dict[str, set[tuple[str, str]]] = {}
    for benchmark in dict.fromkeys(name for run in runs for name in run.scores):
        sets = [set(run.scores[benchmark].questions) if benchmark in run.scores else set() for run in runs]
        if not shared_only and any(questions != sets[0] for questions in sets):
            counts = ", ".join(f"{run.name} {len(questions)}" for run, questions in zip(runs, sets, strict=True))
            common = len(set.intersection(*sets))
            raise ValueError(
                f"benchmark={benchmark}: must have the same questions in all files ({counts}; in common {common}); "
                "--shared_only compares those"
            )
        if common_questions := set.intersection(*sets):
            shared[benchmark] = common_questions
    if not shared:
        raise ValueError("the files have no question in common")
    order = {name: [q for q in runs[0].scores[name].questions if q in shared[name]] for name in shared}
    return [replace(run, scores={name: _select(run.scores[name], order[name]) for name in order}) for run in runs]


def _select(scores: Scores, questions: Sequence[tuple[str, str]]) -> Scores:
    places = {question: place for place, question in enumerate(scores.questions)}
    return replace(
        scores, questions=tuple(questions), values_QM=scores.values_QM[[places[question] for question in questions]]
    )


def differences(first: Run, other: Run, seed: int = 0) -> dict[str, dict[str, dict[str, float]]]:
    """Benchmark -> metric -> the other's value less the first's, with its paired interval.

    ``best`` and ``majority`` only where both have as many samples; under ``overall`` the mean over benchmarks of what
    all of them have.
    """
    paired = {}
    for name, mine in first.scores.items():
        theirs = other.scores[name]
        metrics = [metric for metric in mine.metrics if metric in theirs.metrics]
        if mine.samples != theirs.samples:
            metrics = [metric for metric in metrics if metric not in ("best", "majority")]
        paired[name] = (metrics, _columns(theirs, metrics) - _columns(mine, metrics))
    everywhere = [m for m in next(iter(paired.values()))[0] if all(m in metrics for metrics, _ in paired.values())]
    found, values, means = {}, [], []
    for name, (metrics, values_QM) in paired.items():
        means_BM = bootstrap(values_QM, generator(seed, name))
        estimates = intervals(values_QM.mean(axis=0), means_BM)
        found[name] = {metric: asdict(value) for metric, value in zip(metrics, estimates, strict=True)}
        columns = [metrics.index(metric) for metric in everywhere]
        values.append(values_QM.mean(axis=0)[columns])
        means.append(means_BM[:, columns])
    overall = intervals(np.mean(values, axis=0), np.mean(means, axis=0))
    return found | {OVERALL: {metric: asdict(value) for metric, value in zip(everywhere, overall, strict=True)}}


def _columns(scores: Scores, metrics: Sequence[str]) -> Any:
    return scores.values_QM[:, [scores.metrics.index(metric) for metric in metrics]]


def flips(first: Run, other: Run, benchmark: str) -> tuple[list[int], list[int]]:
    """Places of the questions whose majority answer became right, and of those where it ceased to be."""
    before_Q, after_Q = (_columns(run.scores[benchmark], ["majority"])[:, 0] > 0.5 for run in (first, other))
    return np.flatnonzero(after_Q & ~before_Q).tolist(), np.flatnonzero(before_Q & ~after_Q).tolist()


def markdown(runs: Sequence[Run]) -> str:
    """The whole comparison."""
    parts = ["# " + " and ".join(run.name for run in runs), _side_by_side(runs)]
    for other in runs[1:]:
        parts += [f"## {plain(other.name)} less {plain(runs[0].name)}", _differences_table(runs[0], other)]
        parts += [_flips_text(runs[0], other)]
    return "\n\n".join(parts)


def _side_by_side(runs: Sequence[Run]) -> str:
    lines = [f"| Mean@n | questions |{''.join(f' {plain(run.name)} | n |' for run in runs)}"]
    lines.append("| --- | ---: |" + " --- | ---: |" * len(runs))
    found = [estimate(run.scores) for run in runs]
    for name, own in [*runs[0].scores.items(), (OVERALL, None)]:
        values = ""
        for run, estimates in zip(runs, found, strict=True):
            samples = run.scores[name].samples if own else ""
            values += f" {cell({'mean': asdict(estimates[name]['mean'])}, 'mean')} | {samples} |"
        lines.append(
            f"| {plain(name) if own else '**mean over benchmarks**'} | {len(own.questions) if own else ''} |{values}"
        )
    return "\n".join(lines)


def _differences_table(first: Run, other: Run) -> str:
    found = differences(first, other)
    metrics = list(dict.fromkeys(metric for own in found.values() for metric in own))
    lines = [
        f"| | {' | '.join(metrics)} | became right | became wrong |",
        "| --- |" + " --- |" * len(metrics) + " ---: | ---: |",
    ]
    for name, own in found.items():
        values = " | ".join(_signed(own.get(metric)) for metric in metrics)
        counts = " | ".join(str(len(side)) for side in flips(first, other, name)) if name != OVERALL else " | "
        lines.append(f"| {plain(name) if name != OVERALL else '**mean over benchmarks**'} | {values} | {counts} |")
    return "\n".join(lines)


def _signed(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "-"
    value, low, high = (("+" if found[key] > 0 else "") + _number(found[key]) for key in ("value", "low", "high"))
    clear = found["low"] > 0 or found["high"] < 0
    return f"{'**' * clear}{value}{'**' * clear} ({low} to {high})"


def _number(value: float) -> str:
    return f"-{number(-value)}" if value < 0 else number(value)


def _flips_text(first: Run, other: Run) -> str:
    lines = []
    for name in first.scores:
        for title, places in zip(("became right", "became wrong"), flips(first, other, name), strict=True):
            if places:
                more = f", the first {SHOWN_FLIPS}" if len(places) > SHOWN_FLIPS else ""
                lines += ["", f"{plain(name)}, {title} ({len(places)}{more}):", ""]
                lines += [_flip(first, other, name, place) for place in places[:SHOWN_FLIPS]]
    return "\n".join(lines).strip() or "No question flipped."


def _flip(first: Run, other: Run, benchmark: str, place: int) -> str:
    question = first.scores[benchmark].questions[place]
    before, after = (_columns(run.scores[benchmark], ["mean"])[place, 0] for run in (first, other))
    text = plain(first.prompts[question])[-PROMPT_END:]
    return f"- {question[0]} (Mean@n {number(before)} to {number(after)}): ...{text}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, align, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", type=Path, nargs="+", help="OUTPUT.jsonl of generate_vllm.py, two or more; the first is the baseline"
    )
    parser.add_argument("--shared_only", action="store_true", help="compare the questions that all files have")
    options = parser.parse_args(arguments)
    try:
        if len(options.files) < 2:
            raise ValueError(f"files={options.files[0]}: must be two or more")
        print(markdown(align([load(path) for path in options.files], shared_only=options.shared_only)))
    except (ValueError, OSError) as error:
        print(f"compare.py: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
