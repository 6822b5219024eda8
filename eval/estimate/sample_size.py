"""How many questions and samples are needed to find a difference: advice before a run.

    exgrpo-eval sample-size --difference 2 --questions 500 --accuracy 0.4 --n 8
    exgrpo-eval sample-size --difference 2 --file data/valid.id.parquet \\
        --pilot out/a.jsonl out/b.jsonl

A two-sided test at 5 % finds a true difference of so many points with 80 % power if its standard
error is at most 1/2.80 of it. The squared error of a difference of Mean@n over Q questions is

    paired:    (B_a + B_b - 2 r sqrt(B_a B_b) + W_a/n + W_b/n) / Q
    unpaired:  (B_a + B_b + W_a/n + W_b/n) / Q

where B is the variance of the success probability over questions, W the average variance of an
outcome within a question, and r the correlation of the success probabilities in the two runs. B + W
is accuracy (1 - accuracy), of which B has the share `--between`. Graded files of a pilot give the
accuracy and, with two or more samples per question, that share; two files also give r.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from exgrpo.console import refused
from exgrpo_eval.estimate import paired_runs
from exgrpo_eval.estimate.estimates import Scores, powers_of_two
from exgrpo_eval.estimate.paired_tests import quantiles
from exgrpo_eval.generate import question_files
from exgrpo_eval.reports.report_text import number, plain
from exgrpo_eval.reports.terminal import show

MOST_SAMPLES = 64  # per question in the table
ACCURACY, BETWEEN, CORRELATION = 0.5, 0.5, 0.8  # defaults without a flag or a pilot


@dataclass(frozen=True)
class Spread:
    """How a benchmark's outcomes vary, see the module's docstring. All values are between 0
    and 1.
    """

    accuracy: float
    between: float
    correlation: float

    def variance(self, difference: float, samples: int, *, paired: bool) -> float:
        """Variance of one question's difference between the two runs' means over their samples.

        Args:
            difference: accuracy of the second run minus that of the first.
        """
        first, second = (
            accuracy * (1 - accuracy) for accuracy in (self.accuracy, self.accuracy + difference)
        )
        shared = 2 * self.correlation * math.sqrt(first * second) if paired else 0.0
        return (
            self.between * (first + second - shared)
            + (1 - self.between) * (first + second) / samples
        )


def questions_needed(spread: Spread, difference: float, samples: int, *, paired: bool) -> int:
    """The smallest number of questions, each with `samples`, that finds the difference with 80 %
    power at 5 %.
    """
    return max(
        1,
        math.ceil(
            quantiles() ** 2 * spread.variance(difference, samples, paired=paired) / difference**2
        ),
    )


def samples_needed(
    spread: Spread, difference: float, questions: int, *, paired: bool
) -> int | None:
    """The smallest number of samples per question for this many questions; None if no number is
    enough.
    """
    allowed = questions * difference**2 / quantiles() ** 2
    between = spread.variance(difference, sys.maxsize, paired=paired)
    within = spread.variance(difference, 1, paired=paired) - between
    return max(1, math.ceil(within / (allowed - between))) if allowed > between else None


def resolvable(spread: Spread, questions: int, samples: int, *, paired: bool) -> float | None:
    """The smallest difference that so many questions and samples find; None if they find no
    possible difference.
    """
    low, high = 0.0, 1 - spread.accuracy
    if questions_needed(spread, high, samples, paired=paired) > questions:
        return None
    for _ in range(50):
        middle = (low + high) / 2
        if questions_needed(spread, middle, samples, paired=paired) > questions:
            low = middle
        else:
            high = middle
    return high


def measured(assumed: Spread, first: Scores, second: Scores | None) -> Spread:
    """A pilot's accuracy, share of the variance between questions and, from two files, correlation.

    The variance of a question's mean includes that of its samples, which is subtracted.
    """
    spread = replace(assumed, accuracy=float(first.column("mean").mean()))
    if first.samples < 2 or len(first.questions) < 2:
        return spread
    between, whole = _between(first), spread.accuracy * (1 - spread.accuracy)
    spread = replace(spread, between=min(1.0, between / whole) if whole else assumed.between)
    if second is None or second.samples < 2 or not between or not _between(second):
        return spread
    shared = float(np.cov(first.column("mean"), second.column("mean"))[0, 1])
    return replace(
        spread, correlation=float(np.clip(shared / math.sqrt(between * _between(second)), 0, 1))
    )


def _between(scores: Scores) -> float:
    """Variance of the chance of success over questions, without bias except that it is at
    least 0.
    """
    means_Q = scores.column("mean")
    within = float((means_Q * (1 - means_Q)).mean()) / (scores.samples - 1)
    return max(0.0, float(means_Q.var(ddof=1)) - within)


@dataclass(frozen=True)
class Plan:
    """A benchmark to give advice for; `questions` is None if their number is open."""

    name: str
    questions: int | None
    spread: Spread


def markdown(plans: Sequence[Plan], difference: float, samples: int | None) -> str:
    """The advice for each benchmark."""
    parts = [
        f"# A difference of {100 * difference:g} points, found with 80 % power by a "
        "two-sided test at 5 %"
    ]
    for plan in plans:
        spread = plan.spread
        parts.append(
            f"{plain(plan.name)}: accuracy {number(spread.accuracy)}, share of the variance "
            "between questions "
            f"{number(spread.between)}, correlation of the two runs {number(spread.correlation)}"
        )
        if spread.accuracy + difference > 1:
            parts.append("The second run's accuracy would be above 1.")
            continue
        parts.append(_table(plan, difference, samples))
        if plan.questions is not None:
            parts.append(_with_questions(plan, difference))
    return "\n\n".join(parts)


def _table(plan: Plan, difference: float, samples: int | None) -> str:
    lines = [
        "| samples per question | questions, paired | questions, unpaired |",
        "| ---: | ---: | ---: |",
    ]
    if plan.questions is not None:
        lines = [
            f"{lines[0]} resolvable, paired | resolvable, unpaired |",
            f"{lines[1]} ---: | ---: |",
        ]
    counts = set(powers_of_two(MOST_SAMPLES))
    if samples is not None:
        counts.add(samples)
    for count in sorted(counts):
        needed = [
            questions_needed(plan.spread, difference, count, paired=paired)
            for paired in (True, False)
        ]
        cells = [f"{questions:,}" for questions in needed]
        if plan.questions is not None:
            for paired in (True, False):
                smallest = resolvable(plan.spread, plan.questions, count, paired=paired)
                cells.append("-" if smallest is None else f"{100 * smallest:.1f} points")
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _with_questions(plan: Plan, difference: float) -> str:
    assert plan.questions is not None
    words = []
    for name, paired in (("paired", True), ("unpaired", False)):
        count = samples_needed(plan.spread, difference, plan.questions, paired=paired)
        words.append(
            f"{name}: "
            + ("no number of samples is enough" if count is None else f"{count:,} samples each")
        )
    return f"With {plan.questions:,} questions, {'; '.join(words)}."


def plans(options: argparse.Namespace) -> list[Plan]:
    """The benchmarks of the pilot or of the question files, or the one that the flags describe.

    Raises:
        ValueError, OSError: a file cannot be used, or a flag's value is not allowed.
    """
    assumed = Spread(
        ACCURACY if options.accuracy is None else options.accuracy,
        BETWEEN if options.between is None else options.between,
        CORRELATION if options.correlation is None else options.correlation,
    )
    counts: dict[str, int | None] = {}
    if options.file:
        files = question_files.expand(options.file, "--file")
        for question in question_files.read(files, remove_system=False, limit=None):
            counts[question.benchmark] = (counts.get(question.benchmark) or 0) + 1
    spreads: dict[str, Spread] = {}
    if options.pilot:
        loaded = [paired_runs.load(path) for path in options.pilot]
        first, *others = paired_runs.align(loaded, shared_only=False)
        for name, scores in first.scores.items():
            spreads[name] = _overruled(
                measured(assumed, scores, others[0].scores[name] if others else None), options
            )
            if not options.file:
                counts[name] = options.questions or len(scores.questions)
    if not counts:
        return [Plan("a benchmark", options.questions, assumed)]
    return [Plan(name, count, spreads.get(name, assumed)) for name, count in counts.items()]


def _overruled(spread: Spread, options: argparse.Namespace) -> Spread:
    """The spread with the values that the command line sets."""
    flags = {name: getattr(options, name) for name in ("accuracy", "between", "correlation")}
    return replace(spread, **{name: value for name, value in flags.items() if value is not None})


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "exgrpo-eval sample-size",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--difference", type=float, required=True, help="in points, above 0 and below 100"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", nargs="+", help="question files, whose questions are counted")
    source.add_argument("--questions", type=int, help="number of questions, 2 or more")
    parser.add_argument(
        "--pilot", type=Path, nargs="+", help="one or two graded files of similar runs"
    )
    parser.add_argument(
        "--accuracy", type=float, help=f"of the first run, 0 to 1 (without a pilot {ACCURACY})"
    )
    parser.add_argument(
        "--between", type=float, help=f"share of the variance, 0 to 1 (without a pilot {BETWEEN})"
    )
    parser.add_argument(
        "--correlation", type=float, help=f"0 to 1 (without a pilot of two files {CORRELATION})"
    )
    parser.add_argument(
        "--n", type=int, help="samples per question, in addition to the powers of two"
    )
    return parser.parse_args(arguments)


def check(options: argparse.Namespace) -> None:
    """ValueError, naming the flag and its value, at the first wrong one."""
    if not 0 < options.difference < 100:
        raise ValueError(
            f"--difference={options.difference:g}: must be above 0 and below 100 points"
        )
    for name in ("accuracy", "between", "correlation"):
        value = getattr(options, name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"--{name}={value:g}: must be from 0 to 1")
    for name, least in (("questions", 2), ("n", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name}={value}: must be {least} or more")
    if options.pilot and len(options.pilot) > 2:
        raise ValueError(f"--pilot: {len(options.pilot)} files; must be one or two")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the files, compute and print the advice."""
    options = read_arguments(arguments)
    try:
        check(options)
        show(markdown(plans(options), options.difference / 100, options.n))
    except (ValueError, OSError) as error:
        refused("exgrpo-eval sample-size", error)
