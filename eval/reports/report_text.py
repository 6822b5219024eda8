"""The report of eval/report.py as Markdown, and the format of its numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHOWN_DISAGREEMENTS = 50
# whose machine and versions a run file holds, by where the responses come from: an engine of our own, a server, a file
MACHINES = {"engine": "", "served": " of the client", "graded": " of the grading"}
SIDES = ("mean_right", "mean_wrong")  # lengths of right and of wrong responses
MATH_VERIFY, FULL, OAT = "Math-Verify", "full grader", "Oat"


def number(value: float | None) -> str:
    """.412 for 0.4123; 1.000 for 1."""
    return "-" if value is None else f"{value:.3f}".removeprefix("0")


def cell(estimates: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """A metric with its interval; a dash if there is none."""
    return with_interval(estimates[metric]) if metric in estimates else "-"


def with_interval(estimate: Mapping[str, float]) -> str:
    """A value with its interval: .412 (.380 to .444)."""
    return f"{number(estimate['value'])} ({number(estimate['low'])} to {number(estimate['high'])})"


def means(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Title and content of the means over an input file's benchmarks, if several files have some, and over all."""
    parts = [(f"mean over {Path(file).name}", part) for file, part in summary["parts"].items()]
    return [*parts, ("mean over benchmarks", summary["overall"])]


def _lines(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Benchmarks and means, with their titles in Markdown."""
    benchmarks = [(plain(name), benchmark) for name, benchmark in summary["benchmarks"].items()]
    return benchmarks + [(f"**{plain(title)}**", mean) for title, mean in means(summary)]


def accuracies(summary: Mapping[str, Any]) -> list[str]:
    """A line for each mean, with its accuracy by every grader in percent; last that of the verdict that counts."""
    return [f"{title}: {', '.join(_percents(summary, mean))}" for title, mean in means(summary)]


def _percents(summary: Mapping[str, Any], mean: Mapping[str, Any]) -> list[str]:
    values = {name: mean["graders"][name] for name in summary["graders"] if name != summary["decided_by"]}
    values[summary["decided_by"]] = mean["estimates"]["mean"]["value"]
    return [f"{name} {100 * value:.1f} %" for name, value in values.items() if value is not None]


def other_graders(summary: Mapping[str, Any]) -> list[str]:
    """The graders with a column of their own: all but the one whose verdict counts."""
    return [name for name in summary["graders"] if name != summary["decided_by"]]


def markdown_table(summary: Mapping[str, Any]) -> str:
    """The table with a row per benchmark and the means over benchmarks."""
    others = other_graders(summary)
    titles = [f"Mean@n ({summary['decided_by']})", *others, "Best@n", "majority@n"]
    lines = [
        f"| benchmark | questions | n | {' | '.join(titles)} | tokens | cut off | Bayes@N |",
        f"| --- | ---: | ---: |{' --- |' * len(titles)} ---: | ---: | --- |",
    ]
    if summary["hardware"]:
        lines = [f"{lines[0]} hardware |", f"{lines[1]} --- |"]
    for title, benchmark in _lines(summary):
        mean, *rest = (cell(benchmark["estimates"], metric) for metric in ("mean", "best", "majority"))
        values = " | ".join([mean, *(number(benchmark["graders"][name]) for name in others), *rest])
        counts = f"{benchmark.get('questions', '')} | {benchmark.get('samples', '')}"
        responses = f"{benchmark['tokens']['mean']:.0f} | {number(benchmark['cut_off'])}"
        machine = f" {plain(summary['hardware'])} |" if summary["hardware"] else ""
        lines.append(f"| {title} | {counts} | {values} | {responses} | {with_interval(benchmark['bayes'])} |{machine}")
    return "\n".join(lines)


def markdown(summary: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    title = f"# {plain(str(summary['run'].get('model_path', 'a model')))}"
    prompt = [plain(summary["run"]["prompt"])] if "prompt" in summary["run"] else []
    accuracy = "\n".join(f"- {plain(line)}" for line in accuracies(summary))
    parts = [title, *prompt, markdown_table(summary), accuracy, notes(summary)]
    metrics = {
        metric for benchmark in summary["benchmarks"].values() for metric in benchmark["estimates"] if "@" in metric
    }
    ks = sorted(metrics, key=_k)
    if len(ks) > 1:
        lines = [f"| benchmark | {' | '.join(ks)} |", f"| --- |{' --- |' * len(ks)}"]
        for title, benchmark in _lines(summary):
            cells = [cell(benchmark["estimates"], k) for k in ks]
            lines.append(f"| {title} | {' | '.join(cells)} |")
        parts += ["## pass@k", "\n".join(lines)]
    parts += ["## Responses", _lengths(summary)]
    if OAT in summary["graders"]:
        parts += ["## Where the graders disagree", _disagreements(summary)]
    parts += ["## How it was made", "```json\n" + json.dumps(summary["run"], indent=2, ensure_ascii=False) + "\n```"]
    return "\n\n".join(parts) + "\n"


def _k(metric: str) -> int:
    return int(metric.partition("@")[2])


def notes(summary: Mapping[str, Any]) -> str:
    """What the table's figures are."""
    interval = summary["interval"]
    return (
        f"In brackets: {interval['level']:.0%} intervals, {interval['method']}, {interval['resamples']:,} draws. The "
        "last line is the unweighted mean over benchmarks, each with its own n; above it the means over the benchmarks "
        f"of each input file, if there are several such files. {_graders(summary)} majority@n: whether the "
        "most frequent answer is right; with ties, the probability that a random one of them is. Bayes@N: the "
        "posterior mean under a flat prior and its 95 % credible interval, for these questions only (arXiv 2510.04265)."
    )


def _graders(summary: Mapping[str, Any]) -> str:
    decided_by = summary["decided_by"]
    said = [
        f"Right is what {decided_by} accepts{', for multiple choice the letter' if decided_by == MATH_VERIFY else ''}."
    ]
    if OAT in summary["graders"]:
        said.append(
            "Oat (--add_oat_evaluate, as in paper and release) judges the last box, of multiple choice and of a "
            "response that was cut off, too, and where </think> is missing the box of the thought."
        )
    said.append("By Math-Verify and the full grader a response that was cut off is wrong.")
    if FULL in summary["graders"]:
        said.append("Full grader: Mean@n if answers that Math-Verify rejects are also judged by rules.")
    return " ".join(said)


def _lengths(summary: Mapping[str, Any]) -> str:
    lines = [
        "| benchmark | responses | tokens: mean | median | 95 % | longest | of right ones | of wrong ones | cut off "
        "| no answer | judging timed out |",
        "| --- |" + " ---: |" * 10,
    ]
    for name, benchmark in [*summary["benchmarks"].items(), ("**all**", summary["overall"])]:
        tokens = benchmark["tokens"]
        sides = " | ".join("-" if tokens[s] is None else f"{tokens[s]:.0f}" for s in SIDES)
        middle = f"{tokens['mean']:.0f} | {tokens['median']:.0f} | {tokens['p95']:.0f} | {tokens['max']} | {sides}"
        shares = f"{number(benchmark['cut_off'])} | {number(benchmark['no_answer'])} | {benchmark['timed_out']}"
        lines.append(f"| {plain(name)} | {benchmark['responses']} | {middle} | {shares} |")
    return "\n".join(lines)


def _disagreements(summary: Mapping[str, Any]) -> str:
    listed = summary["disagreements_listed"][:SHOWN_DISAGREEMENTS]
    head = f"{summary['disagreements']} responses" + (f", the first {len(listed)}:" if listed else ".")
    if not listed:
        return head
    lines = [f"| benchmark | question | sample | gold | answer | {MATH_VERIFY} | {OAT} |", "| --- |" + " --- |" * 6]
    for row in listed:
        verdicts = " | ".join("right" if row[key] else "wrong" for key in ("math_verify_correct", "oat_correct"))
        place = f"{plain(row['benchmark'])} | {row['question']} | {row['sample']}"
        lines.append(f"| {place} | {_code(row['answer'])} | {_code(row['extracted'])} | {verdicts} |")
    return head + "\n\n" + "\n".join(lines)


def origin(run: Mapping[str, Any]) -> str:
    """Where a run's responses come from, a key of MACHINES.

    Args:
        run: the content of OUTPUT's run file.
    """
    identity = run.get("identity") or {}
    if "grade_only" in identity:
        return "graded"
    return "served" if "served_model" in identity else "engine"


def hardware(run: Mapping[str, Any]) -> str | None:
    """The GPUs that generated a run, or the CPU if there was none; None if the run file does not say."""
    if origin(run) != "engine":
        return None
    machine = run.get("machine") or {}
    gpus = Counter(machine.get("gpus") or [])
    if gpus:
        return ", ".join(f"{count} x {name}" for name, count in gpus.items())
    if not machine.get("cpu"):
        return None
    return machine["cpu"] + (f", {machine['cores']} cores" if machine.get("cores") else "")


def plain(text: str) -> str:
    """Text that is safe in a table and on the page."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str | None) -> str:
    """A model's text as code in a table's cell."""
    if text is None:
        return "-"
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|")[:80] + "`"
