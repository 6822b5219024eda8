"""Runs side by side: what each scored, by how much the others differ from the first, and which questions flipped.

    python eval/compare.py A.jsonl B.jsonl [C.jsonl ...]

Markdown on stdout; on a terminal its tables are drawn. Differences are paired: question by question, with 95 %
intervals by a bootstrap that draws the same questions for both runs, which is far sharper than two separate intervals.
A question flips where its majority answer (with one sample per question, its answer) is right in one run only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

if not __package__:  # run as a script: only this folder is on the import path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eval import graded_file
from eval.estimates import OVERALL, Estimate, Scores, estimate, score
from eval.report_text import number, plain, with_interval
from eval.terminal import show

SHOWN_FLIPS = 20
PROMPT_END = 100  # characters of a question in the list of flips


@dataclass(frozen=True)
class Run:
    """A graded file: its scores by benchmark, and the prompt of each question."""

    name: str
    scores: dict[str, Scores]
    prompts: dict[tuple[str, str], str]


def load(path: Path) -> Run:
    """Read a graded file; ValueError or OSError where it is not one."""
    rows = graded_file.read(path)
    return Run(path.stem, score(rows), {(row["question_id"], row["answer"]): row.get("prompt", "") for row in rows})


def align(runs: Sequence[Run], *, shared_only: bool) -> list[Run]:
    """The runs with the same benchmarks and questions in the same order.

    Raises:
        ValueError: their questions differ and `shared_only` is not set, or they share none.
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
        common_questions = set.intersection(*sets)
        if common_questions:
            shared[benchmark] = common_questions
    if not shared:
        raise ValueError("the files have no question in common")
    order = {name: [q for q in runs[0].scores[name].questions if q in shared[name]] for name in shared}
    return [replace(run, scores={name: _select(run.scores[name], order[name]) for name in order}) for run in runs]


def _select(scores: Scores, questions: Sequence[tuple[str, str]]) -> Scores:
    """The scores of these questions alone, in this order."""
    places = {question: place for place, question in enumerate(scores.questions)}
    rows = [places[question] for question in questions]
    return replace(scores, questions=tuple(questions), values_QM=scores.values_QM[rows])


def differences(first: Run, other: Run) -> dict[str, dict[str, Estimate]]:
    """Benchmark -> metric -> the other's value less the first's, with its paired interval.

    ``best`` and ``majority`` only where both have as many samples; under ``overall`` the mean over benchmarks of what
    all of them have.
    """
    return estimate({name: _difference(mine, other.scores[name]) for name, mine in first.scores.items()})


def _difference(mine: Scores, theirs: Scores) -> Scores:
    """Question by question theirs less mine, of the metrics that mean the same in both."""
    unlike = () if mine.samples == theirs.samples else ("best", "majority")
    metrics = tuple(name for name in mine.metrics if name in theirs.metrics and name not in unlike)
    columns = [theirs.column(name) - mine.column(name) for name in metrics]
    return replace(mine, metrics=metrics, values_QM=np.stack(columns, axis=1))


@dataclass(frozen=True)
class Flips:
    """Places of the questions whose majority answer became right, and of those where it became wrong."""

    became_right: list[int]
    became_wrong: list[int]


def flips(first: Run, other: Run, benchmark: str) -> Flips:
    """The questions of a benchmark that flipped between two aligned runs."""
    before_Q, after_Q = (run.scores[benchmark].column("majority") > 0.5 for run in (first, other))
    return Flips(np.flatnonzero(after_Q & ~before_Q).tolist(), np.flatnonzero(before_Q & ~after_Q).tolist())


def markdown(runs: Sequence[Run]) -> str:
    """The whole comparison."""
    parts = ["# " + " and ".join(run.name for run in runs), _side_by_side(runs)]
    for other in runs[1:]:
        parts += [f"## {plain(other.name)} less {plain(runs[0].name)}", _differences_table(runs[0], other)]
        parts += [_flips_text(runs[0], other)]
    return "\n\n".join(parts)


def _side_by_side(runs: Sequence[Run]) -> str:
    lines = [
        f"| Mean@n | questions |{''.join(f' {plain(run.name)} | n |' for run in runs)}",
        "| --- | ---: |" + " --- | ---: |" * len(runs),
    ]
    estimates = [estimate(run.scores) for run in runs]
    for name, own in runs[0].scores.items():
        cells = [
            f" {with_interval(asdict(of_run[name]['mean']))} | {run.scores[name].samples} |"
            for run, of_run in zip(runs, estimates, strict=True)
        ]
        lines.append(f"| {plain(name)} | {len(own.questions)} |{''.join(cells)}")
    overall = [f" {with_interval(asdict(of_run[OVERALL]['mean']))} |  |" for of_run in estimates]
    lines.append(f"| **mean over benchmarks** |  |{''.join(overall)}")
    return "\n".join(lines)


def _differences_table(first: Run, other: Run) -> str:
    by_benchmark = differences(first, other)
    metrics = list(dict.fromkeys(metric for own in by_benchmark.values() for metric in own))
    lines = [
        f"| | {' | '.join(metrics)} | became right | became wrong |",
        "| --- |" + " --- |" * len(metrics) + " ---: | ---: |",
    ]
    for name, own in by_benchmark.items():
        title, counts = "**mean over benchmarks**", " | "
        if name != OVERALL:
            flipped = flips(first, other, name)
            title, counts = plain(name), f"{len(flipped.became_right)} | {len(flipped.became_wrong)}"
        lines.append(f"| {title} | {' | '.join(_signed(own.get(metric)) for metric in metrics)} | {counts} |")
    return "\n".join(lines)


def _signed(difference: Estimate | None) -> str:
    """A difference with its interval, bold where the interval leaves out zero."""
    if difference is None:
        return "-"
    value, low, high = (_number(end) for end in (difference.value, difference.low, difference.high))
    clear = difference.low > 0 or difference.high < 0
    return f"**{value}** ({low} to {high})" if clear else f"{value} ({low} to {high})"


def _number(value: float) -> str:
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return sign + number(abs(value))


def _flips_text(first: Run, other: Run) -> str:
    lines = []
    for name in first.scores:
        flipped = flips(first, other, name)
        for title, places in (("became right", flipped.became_right), ("became wrong", flipped.became_wrong)):
            if places:
                more = f", the first {SHOWN_FLIPS}" if len(places) > SHOWN_FLIPS else ""
                lines += ["", f"{plain(name)}, {title} ({len(places)}{more}):", ""]
                lines += [_flip(first, other, name, place) for place in places[:SHOWN_FLIPS]]
    return "\n".join(lines).strip() or "No question flipped."


def _flip(first: Run, other: Run, benchmark: str, place: int) -> str:
    question = first.scores[benchmark].questions[place]
    before, after = (run.scores[benchmark].column("mean")[place] for run in (first, other))
    end = plain(first.prompts[question])[-PROMPT_END:]
    return f"- {question[0]} (Mean@n {number(before)} to {number(after)}): ...{end}"


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
        show(markdown(align([load(path) for path in options.files], shared_only=options.shared_only)))
    except (ValueError, OSError) as error:
        print(f"compare.py: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
