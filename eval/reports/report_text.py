"""The report of eval/report.py as Markdown, and the format of its numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exgrpo.console import printable

SHOWN_DISAGREEMENTS = 50
# whose machine and versions a run file holds, by where the responses come from: an engine of our
# own, a server, a file
MACHINES = {"engine": "", "served": " of the client", "graded": " of the grading"}
ALL = "all"  # title of the lengths of all responses
SIDES = ("mean_right", "mean_wrong")  # lengths of right and of wrong responses
SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "template")  # of a run's settings
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


def tokens(count: float | None) -> str:
    """A number of tokens without decimals; a dash if it is not known."""
    return "-" if count is None else f"{count:.0f}"


def over(text: str, known: int, responses: int) -> str:
    """A figure, and over how many responses it is where it is not over all of them."""
    return text if known in (0, responses) else f"{text} (of {known} of {responses})"


def model_name(run: Mapping[str, Any]) -> str:
    """The model's path or name; of a file of responses that does not say, the file's name."""
    if run.get("model_path"):
        return str(run["model_path"])
    graded = (run.get("settings") or {}).get("grade_only")
    return f"responses of {Path(graded).name}" if graded else "a model"


def sampling(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of how the responses were sampled; a dash where that is not known."""
    run = summary["run"]
    settings = run.get("settings") or {}
    by_count: dict[int, list[str]] = {}
    for name, benchmark in summary["benchmarks"].items():
        by_count.setdefault(benchmark["samples"], []).append(name)
    counts = [
        f"{count} ({', '.join(names)})" if len(by_count) > 1 else str(count)
        for count, names in by_count.items()
    ]
    values = {name: settings.get(name, run.get(name)) for name in SAMPLING}
    shown = {name: "-" if value is None else str(value) for name, value in values.items()}
    return [("model", str(run.get("model_path") or "-")), ("n", ", ".join(counts)), *shown.items()]


def heading(summary: Mapping[str, Any]) -> list[str]:
    """The lines above the table: the prompt, if the run file has it, and the sampling."""
    prompt = [summary["run"]["prompt"]] if summary["run"].get("prompt") else []
    return [
        *prompt,
        "Sampling: " + ", ".join(f"{name} {value}" for name, value in sampling(summary)) + ".",
    ]


def means(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Title and content of the means over an input file's benchmarks, if several files have some,
    and over all; none of a single benchmark.
    """
    if len(summary["benchmarks"]) == 1:
        return []
    parts = [(f"mean over {Path(file).name}", part) for file, part in summary["parts"].items()]
    return [*parts, ("mean over benchmarks", summary["overall"])]


def _lines(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Benchmarks and means, with their titles in Markdown."""
    benchmarks = [(plain(name), benchmark) for name, benchmark in summary["benchmarks"].items()]
    return benchmarks + [(f"**{plain(title)}**", mean) for title, mean in means(summary)]


def accuracies(summary: Mapping[str, Any]) -> list[str]:
    """A line for each mean, or the only benchmark: its accuracy by every grader in percent, that
    which counts last.
    """
    lines = means(summary) or summary["benchmarks"].items()
    return [f"{title}: {', '.join(_percents(summary, mean))}" for title, mean in lines]


def _percents(summary: Mapping[str, Any], mean: Mapping[str, Any]) -> list[str]:
    values = {
        name: mean["graders"][name] for name in summary["graders"] if name != summary["decided_by"]
    }
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
        f"| benchmark | questions | n | {' | '.join(titles)} | tokens | cut off |",
        f"| --- | ---: | ---: |{' --- |' * len(titles)} ---: | ---: |",
    ]
    bayes = has_bayes(summary)
    if bayes:
        lines = [f"{lines[0]} Bayes@N |", f"{lines[1]} --- |"]
    if summary["hardware"]:
        lines = [f"{lines[0]} hardware |", f"{lines[1]} --- |"]
    for title, benchmark in _lines(summary):
        mean, *rest = (
            cell(benchmark["estimates"], metric) for metric in ("mean", "best", "majority")
        )
        values = " | ".join([mean, *(number(benchmark["graders"][name]) for name in others), *rest])
        counts = f"{benchmark.get('questions', '')} | {benchmark.get('samples', '')}"
        posterior = (
            f" {with_interval(benchmark['bayes']) if benchmark['bayes'] else '-'} |"
            if bayes
            else ""
        )
        machine = f" {plain(summary['hardware'])} |" if summary["hardware"] else ""
        lines.append(
            f"| {title} | {counts} | {values} | {mean_tokens(benchmark)} | "
            f"{cut_off(benchmark)} |{posterior}{machine}"
        )
    return "\n".join(lines)


def has_bayes(summary: Mapping[str, Any]) -> bool:
    """Whether a benchmark has a Bayes@N, which is left out where its prior decides it."""
    return any(benchmark["bayes"] for benchmark in summary["benchmarks"].values())


def mean_tokens(benchmark: Mapping[str, Any]) -> str:
    """The responses' mean length."""
    lengths = benchmark["tokens"]
    return over(tokens(lengths["mean"]), lengths["responses"], benchmark["responses"])


def cut_off(benchmark: Mapping[str, Any]) -> str:
    """The share of truncated responses."""
    return over(number(benchmark["cut_off"]), benchmark["finish_known"], benchmark["responses"])


def markdown(summary: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    title = f"# {plain(model_name(summary['run']))}"
    accuracy = "\n".join(f"- {plain(line)}" for line in accuracies(summary))
    parts = [
        title,
        *map(plain, heading(summary)),
        markdown_table(summary),
        accuracy,
        notes(summary),
    ]
    metrics = {
        metric
        for benchmark in summary["benchmarks"].values()
        for metric in benchmark["estimates"]
        if "@" in metric
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
    parts += [
        "## How it was made",
        "```json\n" + _readable_json(summary["run"]) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _k(metric: str) -> int:
    return int(metric.partition("@")[2])


def notes(summary: Mapping[str, Any]) -> str:
    """What the table's figures are."""
    interval = summary["interval"]
    said = [
        f"In brackets: {interval['level']:.0%} intervals, {interval['method']}, "
        f"{interval['resamples']:,} draws; where "
        f"too few questions differ for it, {interval['few']}'s."
    ]
    if means(summary):
        said.append("The last line is the unweighted mean over benchmarks, each with its own n.")
    if summary["parts"]:
        said.append("Above it are the means over the benchmarks of each input file.")
    said += [
        _graders(summary),
        "majority@n: whether the most frequent answer is right; with ties, the probability "
        "that a random one is.",
    ]
    if has_bayes(summary):
        said.append(
            "Bayes@N: the posterior mean under a flat prior and its 95 % credible "
            "interval, for these questions only "
            "(arXiv 2510.04265); a dash where the prior decides it."
        )
    return " ".join(said)


def _graders(summary: Mapping[str, Any]) -> str:
    decided_by = summary["decided_by"]
    author = summary["run"].get("judged_by")
    said = [f"{decided_by} is the training's reward function: {author}."] if author else []
    said += [
        f"Right is what {decided_by} "
        f"accepts{', for multiple choice the letter' if decided_by == MATH_VERIFY else ''}."
    ]
    if OAT in summary["graders"]:
        said.append(
            "Oat (--add_oat_evaluate, as in paper and release) judges the last box, of "
            "multiple choice and of a "
            "response that was cut off, too, and where </think> is missing the box of the thought."
        )
    said.append("By Math-Verify and the full grader a response that was cut off is wrong.")
    if FULL in summary["graders"]:
        said.append(
            "Full grader: Mean@n if answers that Math-Verify rejects are also judged by rules."
        )
    return " ".join(said)


def length_rows(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The lines of the table of lengths: the benchmarks, the input files' and, of several
    benchmarks, all together.
    """
    together = [
        (ALL if mean is summary["overall"] else title, mean) for title, mean in means(summary)
    ]
    return [*summary["benchmarks"].items(), *together]


def _lengths(summary: Mapping[str, Any]) -> str:
    lines = [
        "| benchmark | responses | tokens: mean | median | 95 % | longest | of right ones "
        "| of wrong ones | cut off "
        "| no answer | judging timed out |",
        "| --- |" + " ---: |" * 10,
    ]
    for name, benchmark in length_rows(summary):
        title = f"**{name}**" if name == ALL and benchmark is summary["overall"] else plain(name)
        rest = " | ".join(
            tokens(benchmark["tokens"][key]) for key in ("median", "p95", "max", *SIDES)
        )
        shares = (
            f"{cut_off(benchmark)} | {number(benchmark['no_answer'])} | {benchmark['timed_out']}"
        )
        lines.append(
            f"| {title} | {benchmark['responses']} | {mean_tokens(benchmark)} | {rest} | {shares} |"
        )
    return "\n".join(lines)


def _disagreements(summary: Mapping[str, Any]) -> str:
    listed = summary["disagreements_listed"][:SHOWN_DISAGREEMENTS]
    head = f"{summary['disagreements']} responses" + (
        f", the first {len(listed)}:" if listed else "."
    )
    if not listed:
        return head
    lines = [
        f"| benchmark | question | sample | gold | answer | {MATH_VERIFY} | {OAT} |",
        "| --- |" + " --- |" * 6,
    ]
    for row in listed:
        verdicts = " | ".join(
            "right" if row[key] else "wrong" for key in ("math_verify_correct", "oat_correct")
        )
        place = f"{plain(row['benchmark'])} | {row['question']} | {row['sample']}"
        lines.append(
            f"| {place} | {_code(row['answer'])} | {_code(row['extracted'])} | {verdicts} |"
        )
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
    """The GPUs that generated a run, or the CPU if there was none; None if the run file does not
    say.
    """
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
    """Somebody else's name or text in Markdown: one line that opens no cell, tag, code or link."""
    shown = printable(" ".join(text.split())).replace("|", "\\|")
    for mark, entity in (("<", "&lt;"), ("`", "&#96;"), ("](", "]&#40;")):
        shown = shown.replace(mark, entity)
    return shown


def _readable_json(value: object) -> str:
    """JSON in which only what a terminal cannot show is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _code(text: str | None) -> str:
    """A model's text as code in a table's cell."""
    if text is None:
        return "-"
    shown = printable(" ".join(text.split()))[:80]
    return "`" + shown.replace("`", "'").replace("|", "\\|") + "`"
