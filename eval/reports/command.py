"""A run's report: OUTPUT.report.md, .report.json, and .report.html, a self-contained page.

    exgrpo-eval report OUTPUT.jsonl [--picture FILE.pdf]

makes it again from the rows and OUTPUT.run.json, as exgrpo-eval generate does at its end.
eval/estimate/estimates.py defines the estimates.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo.console import refused
from exgrpo.saved import durable
from exgrpo_eval.estimate import bayes, graded_file
from exgrpo_eval.estimate.estimates import LEVEL, OVERALL, RESAMPLES, Estimate, estimate, score
from exgrpo_eval.estimate.pass_curves import curves
from exgrpo_eval.generate import finished
from exgrpo_eval.reports import picture, report_page, report_text
from exgrpo_eval.reports.report_text import (
    FULL,
    MATH_VERIFY,
    OAT,
    SIDES,
    accuracies,
    hardware,
    markdown,
    markdown_table,
)
from exgrpo_eval.reports.terminal import show
from exgrpo_tools import reward_option
from exgrpo_tools.inspect.text import print_lines
from exgrpo_tools.reward_option import Reward

KEPT_DISAGREEMENTS = 500
FEW = "Wilson"  # method of the intervals where too few questions differ for a bootstrap
Row = Mapping[str, Any]


def write(rows: Sequence[Row], run: Mapping[str, Any], output: Path) -> dict[str, Any]:
    """Write the three files beside `output`, each atomically; returns the report's content.

    Args:
        rows: graded, see grading.grade.
        run: the content of OUTPUT.run.json.
    """
    summary = summarise(rows, run)
    page = report_page.render(summary, rows)
    for suffix, text in (
        (".report.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n"),
        (".report.md", markdown(summary)),
        (".report.html", page),
    ):
        durable.replace_file(output.with_suffix(suffix), text, errors="replace")
    print(f"{output.with_suffix('.report.md')}, .json and .html\n")
    print_lines([*report_text.heading(summary), ""])
    show(markdown_table(summary))
    print_lines(["", *accuracies(summary)])
    return summary


def summarise(rows: Sequence[Row], run: Mapping[str, Any]) -> dict[str, Any]:
    """The report's content as JSON values."""
    scores, graders = (
        score(rows),
        [name for name, share in _accuracies(rows).items() if share is not None],
    )
    estimates = estimate(scores)
    posteriors = {name: bayes.of_scores(benchmark) for name, benchmark in scores.items()}
    pass_curves = curves(scores)
    benchmarks = {}
    for name, benchmark in scores.items():
        benchmarks[name] = {
            "questions": len(benchmark.questions),
            "samples": benchmark.samples,
            "estimates": {metric: asdict(value) for metric, value in estimates[name].items()},
            "bayes": _fields(posteriors[name]),
            "pass_at_k": pass_curves.get(name),
            **_responses([row for row in rows if row["benchmark"] == name]),
        }

    def mean_over(names: Sequence[str], estimates: Mapping[str, Estimate]) -> dict[str, Any]:
        return {
            "estimates": {metric: asdict(value) for metric, value in estimates.items()},
            "bayes": _fields(
                bayes.mean([posteriors[name] for name in names], estimates["mean"].value)
            ),
            **_responses([row for row in rows if row["benchmark"] in names]),
            "graders": {
                grader: _mean_of([benchmarks[name]["graders"][grader] for name in names])
                for grader in graders
            },
        }

    parts = {
        file: mean_over(names, estimate({name: scores[name] for name in names})[OVERALL])
        for file, names in _parts(rows).items()
    }
    differing = [row for row in rows if _disagree(row)]
    return {
        "benchmarks": benchmarks,
        "parts": parts,
        "overall": mean_over(list(scores), estimates[OVERALL]),
        "interval": {
            "level": LEVEL,
            "resamples": RESAMPLES,
            "method": "percentile bootstrap over questions",
            "few": FEW,
        },
        "graders": graders,
        "decided_by": _decided_by(rows, run),
        "disagreements": len(differing),
        "disagreements_listed": [_listed(row) for row in differing[:KEPT_DISAGREEMENTS]],
        "hardware": hardware(run),
        "run": dict(run),
    }


def _parts(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Input file -> its benchmarks, for files that have some but not all of them, such as those in
    distribution.
    """
    first = {row["benchmark"]: row["input_file"] for row in reversed(rows) if row.get("input_file")}
    parts: dict[str, list[str]] = {}
    for name in dict.fromkeys(row["benchmark"] for row in rows if row["benchmark"] in first):
        parts.setdefault(first[name], []).append(name)
    return {file: names for file, names in parts.items() if len(parts) > 1 and len(names) > 1}


def _responses(rows: Sequence[Row]) -> dict[str, Any]:
    """Lengths in tokens, and the shares of responses that are truncated, have no answer, or could
    not be judged.

    Lengths and truncation are of the responses of which they are known, None if of none;
    ``tokens.responses`` and ``finish_known`` count those. ``graders``: the accuracy by each, None
    for one that judged none of the rows;
    ``rules``: the full grader's extra successes.
    """
    extra_rules = Counter(
        row["rule"] for row in rows if row.get("rule") and not _by_math_verify(row)
    )
    return {
        "responses": len(rows),
        "tokens": _lengths([row for row in rows if row["tokens"] is not None]),
        "cut_off": graded_file.cut_off(rows),
        "finish_known": sum(row["finish_reason"] is not None for row in rows),
        "no_answer": _share(
            row["vote"] is None and row["finish_reason"] != "length" for row in rows
        ),
        "timed_out": sum(row["timed_out"] for row in rows),
        "graders": _accuracies(rows),
        "rules": dict(extra_rules.most_common()),
    }


def _lengths(rows: Sequence[Row]) -> dict[str, Any]:
    """Statistics of the rows' numbers of tokens, which are known; None if there are no rows."""
    tokens = np.array([row["tokens"] for row in rows])
    correct = np.array([row["correct"] for row in rows], dtype=bool)
    parts = {"mean": tokens, **dict(zip(SIDES, (tokens[correct], tokens[~correct]), strict=True))}
    return {
        "responses": len(rows),
        "median": float(np.median(tokens)) if len(rows) else None,
        "p95": float(np.percentile(tokens, 95)) if len(rows) else None,
        "max": int(tokens.max()) if len(rows) else None,
        **{name: float(part.mean()) if len(part) else None for name, part in parts.items()},
    }


def _fields(found: bayes.Posterior | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _accuracies(rows: Sequence[Row]) -> dict[str, float | None]:
    """The share of right responses by each grader; None for one that has not judged them."""
    oat = [row["oat_correct"] for row in rows if row.get("oat_correct") is not None]
    return {
        MATH_VERIFY: _share(map(_by_math_verify, rows)),
        FULL: _share(row["rule"] is not None for row in rows)
        if all("rule" in row for row in rows)
        else None,
        OAT: _share(oat) if oat else None,
    }


def _by_math_verify(row: Row) -> bool:
    return bool(row.get("math_verify_correct", row["correct"]))


def _decided_by(rows: Sequence[Row], run: Mapping[str, Any]) -> str:
    """The grader whose verdict is ``correct``."""
    if any(row.get("reward") is not None for row in rows):
        # without the folder, the version and the arguments
        return Path(str(run.get("judged_by", "the reward")).partition(";")[0]).name
    if any(row.get("oat_correct") is None for row in rows):
        return MATH_VERIFY
    return (
        OAT
        if all(row["correct"] == row["oat_correct"] for row in rows)
        else f"{OAT} or {MATH_VERIFY}"
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _share(marks: Any) -> float:
    return float(np.mean(list(marks)))


def _disagree(row: Row) -> bool:
    return row.get("oat_correct") is not None and row["oat_correct"] != row["math_verify_correct"]


def _listed(row: Row) -> dict[str, Any]:
    keys = (
        "benchmark",
        "question",
        "sample",
        "answer",
        "extracted",
        "math_verify_correct",
        "oat_correct",
    )
    return {key: row[key] for key in keys}


def _series(summary: Mapping[str, Any]) -> dict[str, dict[str, Estimate]]:
    """Mean@n, majority@n and Best@n of each benchmark, for the picture."""
    table = {**summary["benchmarks"], OVERALL: summary["overall"]}
    return {
        title: {
            name: Estimate(**benchmark["estimates"][metric]) for name, benchmark in table.items()
        }
        for metric, title in report_page.ESTIMATES.items()
    }


def _judged_anew(
    rows: list[dict[str, Any]], run: dict[str, Any], output: Path, reward: Reward | None
) -> list[dict[str, Any]]:
    """The rows by another reward function, written in place of the old ones, with their record."""
    if reward is None or reward.is_ours:
        raise ValueError(
            "--reward: must be a reward function; exgrpo-eval generate --force_generate False "
            "judges by exgrpo's graders"
        )
    rows = finished.judge_by_reward(rows, run, reward)
    finished.write_rows(rows, run, output)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the report of a finished run again."""
    parser = argparse.ArgumentParser(
        "exgrpo-eval report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "output_file",
        type=Path,
        help="OUTPUT.jsonl of exgrpo-eval generate, its OUTPUT.run.json beside it",
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="means with intervals, as .pdf or .svg"
    )
    reward_option.add_to(parser)
    options = parser.parse_args(arguments)
    path = options.output_file
    try:
        if options.picture:
            picture.check(options.picture)
        rows = graded_file.read(path)
        run = graded_file.record(path.with_suffix(".run.json"))
        if options.reward:
            rows = _judged_anew(rows, run, path, reward_option.chosen(options, None))
        summary = write(rows, run, path)
        if options.picture:
            picture.draw(_series(summary), "accuracy", options.picture)
    except (ValueError, OSError) as error:
        refused("exgrpo-eval report", error)
