"""Compare runs: the scores of each, the others' differences to the first, and which questions
flipped.

    exgrpo-eval compare A.jsonl B.jsonl [C.jsonl ...]
    exgrpo-eval compare --runs_a A1.jsonl A2.jsonl ... --runs_b B1.jsonl B2.jsonl ...

Prints Markdown; on a terminal its tables are drawn. Differences are paired by question, with 95 %
intervals from a bootstrap that draws the same questions for both runs, which are far narrower than
two separate intervals. Each benchmark's difference of Mean@n is tested
(eval/estimate/paired_tests.py), with a p value corrected over benchmarks. A question flips if its
majority answer (with one sample per question, its answer) is right in only one of the runs.

The second form compares two methods, each with the files of several training runs
(eval/estimate/training_runs.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from exgrpo.console import in_one_line, refused
from exgrpo_eval.estimate import training_runs
from exgrpo_eval.estimate.estimates import Estimate, estimate
from exgrpo_eval.estimate.paired_runs import align, load
from exgrpo_eval.reports import picture
from exgrpo_eval.reports.compare_text import markdown, methods_markdown
from exgrpo_eval.reports.terminal import show

Series = dict[str, dict[str, Estimate]]  # name -> benchmark -> Mean@n


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "exgrpo-eval compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="*",
        help="OUTPUT.jsonl of exgrpo-eval generate, two or more; the first is the baseline",
    )
    parser.add_argument(
        "--runs_a", type=Path, nargs="+", help="files of the baseline method, one per training run"
    )
    parser.add_argument("--runs_b", type=Path, nargs="+", help="files of the other method")
    parser.add_argument(
        "--shared_only", action="store_true", help="compare only the questions that all files have"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="means with intervals, as .pdf or .svg"
    )
    return parser.parse_args(arguments)


def check(options: argparse.Namespace) -> None:
    """ValueError, naming the flag and its value, at the first wrong one."""
    if options.runs_a or options.runs_b:
        if options.files:
            raise ValueError(
                f"files={options.files[0]}: must not be given with --runs_a and --runs_b"
            )
        for name in ("runs_a", "runs_b"):
            count = len(getattr(options, name) or [])
            if count < 2:
                raise ValueError(
                    f"--{name}: {count} files; must be two or more, one per training run"
                )
    elif len(options.files) < 2:
        raise ValueError(f"files={' '.join(map(str, options.files))}: must be two or more")
    if options.picture:
        picture.check(options.picture)


def compare_files(options: argparse.Namespace) -> tuple[str, Series]:
    """Compare single runs: the text as Markdown, and the estimates for a picture."""
    runs = align([load(path) for path in options.files], shared_only=options.shared_only)
    series = {}
    for place, run in enumerate(runs):
        name = run.name if run.name not in series else f"{run.name} ({place + 1})"
        series[name] = {
            benchmark: estimates["mean"] for benchmark, estimates in estimate(run.scores).items()
        }
    return markdown(runs), series


def compare_methods(options: argparse.Namespace) -> tuple[str, Series]:
    """Compare two methods: the text as Markdown, and the estimates for a picture."""
    runs = align(
        [load(path) for path in (*options.runs_a, *options.runs_b)], shared_only=options.shared_only
    )
    first, second = runs[: len(options.runs_a)], runs[len(options.runs_a) :]
    comparisons = training_runs.compare(
        [run.scores for run in first], [run.scores for run in second]
    )
    series = {
        "method a": {benchmark: comparison.first for benchmark, comparison in comparisons.items()},
        "method b": {benchmark: comparison.second for benchmark, comparison in comparisons.items()},
    }
    return methods_markdown(first, second, comparisons), series


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and align the files, print the comparison."""
    options = read_arguments(arguments)
    try:
        check(options)
        text, series = compare_methods(options) if options.runs_a else compare_files(options)
        show(text)
        if options.picture:
            picture.draw(series, "Mean@n", options.picture)
    except (ValueError, OSError) as error:
        refused("exgrpo-eval compare", error)


if __name__ == "__main__":
    with in_one_line("exgrpo-eval compare"):
        main()
