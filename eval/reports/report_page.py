"""The report as one HTML page that makes no requests and never interprets a model's text as markup.

Responses are embedded as JSON and shown as text, twenty at a time, so that thousands stay readable.
To keep the page small it has at most RESPONSES_SHOWN of each benchmark and MAX_TEXT characters of
each, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from exgrpo_eval.reports import report_text
from exgrpo_tools import charts

RESPONSES_SHOWN = 100  # per benchmark: half of them right and half wrong, if there are enough
MAX_TEXT = 20_000  # characters of a response or prompt
ESTIMATES = {
    "mean": "Mean@n",
    "majority": "majority@n",
    "best": "Best@n",
}  # of the plot of intervals
Row = Mapping[str, Any]


def render(summary: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The page.

    Args:
        summary: of report.summarise.
        rows: graded, in any order.
    """
    here = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    benchmarks = list(summary["benchmarks"].items())
    table = [*benchmarks, *report_text.means(summary)]
    shown = [
        row
        for name, _ in benchmarks
        for row in chosen([row for row in rows if row["benchmark"] == name])
    ]
    curves = pass_at_k(benchmarks)
    return here.get_template("report.html.jinja").render(
        summary=summary,
        table=table,
        curves=curves,
        ks=sorted(
            {
                metric
                for _, benchmark in benchmarks
                for metric in benchmark["estimates"]
                if "@" in metric
            },
            key=_k,
        ),
        run=json.dumps(summary["run"], indent=2, ensure_ascii=False),
        model=report_text.model_name(summary["run"]),
        heading=report_text.heading(summary),
        facts=facts(summary),
        lengths=report_text.length_rows(summary),
        graders=report_text.other_graders(summary),
        accuracies=report_text.accuracies(summary),
        notes=report_text.notes(summary),
        number=report_text.number,
        tokens=report_text.tokens,
        mean_tokens=report_text.mean_tokens,
        cut_off=report_text.cut_off,
        has_bayes=report_text.has_bayes(summary),
        chart_script=charts.script(),
        data=charts.embedded(
            {
                "rows": [entry(row) for row in shown],
                "intervals": intervals(table),
                "pass_at_k": curves,
            }
        ),
        shown=len(shown),
        total=len(rows),
        limits={"responses": RESPONSES_SHOWN, "text": MAX_TEXT},
    )


def intervals(benchmarks: Sequence[tuple[str, Row]]) -> dict[str, Any]:
    """Data for charts.intervals: a line per benchmark with Mean@n, majority@n and Best@n."""
    series = [
        {"name": name, "found": [benchmark["estimates"][metric] for _, benchmark in benchmarks]}
        for metric, name in ESTIMATES.items()
    ]
    return {"rows": [name for name, _ in benchmarks], "series": series}


def pass_at_k(benchmarks: Sequence[tuple[str, Row]]) -> dict[str, Any] | None:
    """Data for charts.lines: a curve per benchmark over k, with its band; None if all have only one
    sample.
    """
    curves = {
        name: benchmark["pass_at_k"] for name, benchmark in benchmarks if benchmark["pass_at_k"]
    }
    if not curves:
        return None
    series = [
        {"name": name, "values": curve["value"], "low": curve["low"], "high": curve["high"]}
        for name, curve in curves.items()
    ]
    return {"ks": max((curve["k"] for curve in curves.values()), key=len), "series": series}


def _k(metric: str) -> int:
    return int(metric.partition("@")[2])


def chosen(rows: Sequence[Row]) -> list[Row]:
    """The responses of a benchmark to show, in order: early samples of early questions, both right
    and wrong ones.
    """
    order = sorted(range(len(rows)), key=lambda i: (rows[i]["sample"], rows[i]["question"]))
    right = [i for i in order if rows[i]["correct"]]
    wrong = [i for i in order if not rows[i]["correct"]]
    few = min(len(right), len(wrong), RESPONSES_SHOWN // 2)
    taken = (
        right[: max(few, RESPONSES_SHOWN - len(wrong))]
        + wrong[: max(few, RESPONSES_SHOWN - len(right))]
    )
    return [rows[i] for i in sorted(taken)]


def entry(row: Row) -> dict[str, Any]:
    """A row's data for the page."""
    keys = (
        "benchmark",
        "question",
        "sample",
        "answer",
        "extracted",
        "correct",
        "tokens",
        "finish_reason",
        "timed_out",
    )
    second = {key: row[key] for key in ("oat_correct", "math_verify_correct") if key in row}
    return {
        **{key: row[key] for key in keys},
        **second,
        "prompt": shortened(row.get("prompt") or ""),
        "response": shortened(row["response"]),
    }


def shortened(text: str) -> str:
    """The text, or its two ends with a note between them."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return (
        f"{text[:half]}\n\n[... {len(text) - 2 * half:,} characters are left out here "
        f"...]\n\n{text[-half:]}"
    )


def facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of a run's main facts, for the page's table; what the run file lacks is left
    out, but a dash stands for sampling that is not known.
    """
    run = summary["run"]
    shown = [*report_text.sampling(summary), ("model sha256", run.get("model_sha256"))]
    shown += [("template sha256", run.get("template_sha256")), *_generation(run)]
    machine, versions = run.get("machine") or {}, run.get("versions", {})
    gpus = ", ".join(machine.get("gpus", [])) or "no GPU"
    whose = report_text.MACHINES[report_text.origin(run)]
    shown += [
        (
            f"machine{whose}",
            f"{machine.get('cpu', '')}, {machine.get('cores', '')} cores, {gpus}"
            if machine
            else None,
        ),
        (f"versions{whose}", ", ".join(f"{name} {version}" for name, version in versions.items())),
        *((f"file {path}", digest) for path, digest in run.get("files", {}).items()),
    ]
    return [(name, str(value)) for name, value in shown if value not in (None, "")]


def _generation(run: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """How the responses were generated."""
    count, seconds = run.get("generated_tokens"), run.get("seconds")
    tokens = "- tokens" if count is None else f"{count:,} tokens"
    if report_text.origin(run) == "graded":
        return [("responses", f"of another harness, graded here; {tokens}")]
    server = run.get("server") or {}
    return [
        ("server", server.get("address")),
        ("engine", server.get("engine")),
        ("started", run.get("started")),
        ("generated", None if seconds is None else f"{tokens} in {seconds:,.0f} s"),
    ]
