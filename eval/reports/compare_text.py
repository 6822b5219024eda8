"""The text of eval/compare.py as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

from exgrpo_eval.estimate import paired_tests
from exgrpo_eval.estimate.estimates import OVERALL, Estimate, estimate
from exgrpo_eval.estimate.paired_runs import Run, differences, flips
from exgrpo_eval.estimate.paired_tests import PairedTest
from exgrpo_eval.estimate.training_runs import Comparison
from exgrpo_eval.reports.report_text import hardware, model_name, number, plain, with_interval

Content = TypeVar("Content")
SHOWN_FLIPS = 20
PROMPT_END = 100  # characters of a question in the list of flips
TESTS_NOTE = (
    "p: a paired test of Mean@n that flips the signs of the questions' differences, exact "
    "with mid-p (with one sample "
    "per question, McNemar's test); for the mean over benchmarks with 20,000 random flips. "
    "Corrected: by Holm, over "
    "benchmarks. Resolvable: the smallest true difference that such a test at 5 % finds "
    "with 80 % power."
)

METHODS_NOTE = (
    "In brackets: 95 % intervals by a bootstrap over training runs and questions. "
    "Student's: the interval from the "
    "variance components, which decides the verdict in the last column. Deviation: "
    "standard deviation of the runs' "
    "means, a / b. Resolvable: the smallest true difference that so many runs and "
    "questions find with 80 % power."
)


def markdown(runs: Sequence[Run]) -> str:
    """The whole comparison."""
    parts = [
        "# " + " and ".join(plain(run.name) for run in runs),
        pairing(runs),
        _side_by_side(runs),
        _facts_table(runs),
    ]
    for other in runs[1:]:
        by_benchmark = differences(runs[0], other)
        parts.append(f"## {plain(other.name)} minus {plain(runs[0].name)}")
        parts.append(_differences_table(runs[0], other, by_benchmark))
        parts += [
            _tests_table(runs[0], other, by_benchmark),
            TESTS_NOTE,
            _flips_text(runs[0], other),
        ]
    return "\n\n".join(parts)


def pairing(runs: Sequence[Run]) -> str:
    """Which questions are compared, in words."""
    first, *others = runs
    said = []
    for name, scores in first.scores.items():
        elsewhere = [
            f"in {plain(run.name)} of {plain(', '.join(run.paired[name]))}"
            for run in others
            if run.paired[name] != (name,)
        ]
        count = len(scores.questions)
        said.append(
            ", ".join([f"{plain(name)} ({count} question{'s' if count > 1 else ''})", *elsewhere])
        )
    golds = [
        f" Of {plain(run.name)}'s, {run.other_gold} have another gold answer."
        for run in others
        if run.other_gold
    ]
    return f"Paired by question id: {'; '.join(said)}.{''.join(golds)}"


def _side_by_side(runs: Sequence[Run]) -> str:
    lines = [
        f"| Mean@n | questions |{''.join(f' {plain(run.name)} | n |' for run in runs)}",
        "| --- | ---: |" + " --- | ---: |" * len(runs),
    ]
    estimates = [estimate(run.scores) for run in runs]
    for name, scores in runs[0].scores.items():
        cells = [
            f" {with_interval(asdict(of_run[name]['mean']))} | {run.scores[name].samples} |"
            for run, of_run in zip(runs, estimates, strict=True)
        ]
        lines.append(f"| {plain(name)} | {len(scores.questions)} |{''.join(cells)}")
    if len(runs[0].scores) > 1:
        overall = [
            f" {with_interval(asdict(of_run[OVERALL]['mean']))} |  |" for of_run in estimates
        ]
        lines.append(f"| **mean over benchmarks** |  |{''.join(overall)}")
    return "\n".join(lines)


def _without_second_mean(by_benchmark: Mapping[str, Content]) -> dict[str, Content]:
    """The same without the mean over benchmarks if there is only one benchmark."""
    alone = len(by_benchmark) == 2
    return {
        name: content for name, content in by_benchmark.items() if not (alone and name == OVERALL)
    }


def _facts_table(runs: Sequence[Run]) -> str:
    """Model, hardware and truncated responses of each run, over all rows of its file."""
    lines = ["| run | model | hardware | cut off |", "| --- | --- | --- | ---: |"]
    for run in runs:
        model = plain(model_name(run.facts)) if run.facts else "-"
        lines.append(
            f"| {plain(run.name)} | {model} | {plain(hardware(run.facts) or '-')} | "
            f"{number(run.cut_off)} |"
        )
    return "\n".join(lines)


def _tests_table(first: Run, other: Run, by_benchmark: Mapping[str, Mapping[str, Estimate]]) -> str:
    """The test of each benchmark, and its verdict in words."""
    lines = [
        "| Mean@n | difference | p | p, corrected | resolvable | |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for name, test in _without_second_mean(
        paired_tests.compare(first.scores, other.scores)
    ).items():
        title = "**mean over benchmarks**" if name == OVERALL else plain(name)
        p_values = f"{_p_value(test.p)} | {_p_value(test.corrected)}"
        difference = by_benchmark[name]["mean"]
        cells = (
            f"{_signed(difference)} | {p_values} | {number(test.resolvable)} | "
            f"{verdict(difference, test)}"
        )
        lines.append(f"| {title} | {cells} |")
    return "\n".join(lines)


def verdict(difference: Estimate, test: PairedTest) -> str:
    """In words: which run is better, or that these questions and samples cannot tell."""
    if difference.low <= 0 <= difference.high:
        if test.p < paired_tests.LEVEL:
            return (
                f"{'higher' if difference.value > 0 else 'lower'} by the test, not by the interval"
            )
        if test.resolvable is None:
            return "cannot be resolved"
        return (
            f"cannot be resolved (these samples resolve {100 * test.resolvable:.1f} points or more)"
        )
    better = "higher" if difference.value > 0 else "lower"
    if test.p >= paired_tests.LEVEL:
        return f"{better} by the interval, not by the test"
    if test.corrected is not None and test.corrected >= paired_tests.LEVEL:
        return f"{better} if it were the only benchmark, not after the correction"
    return better


def _p_value(p: float | None) -> str:
    return "<.001" if p is not None and p < 0.001 else number(p)


def _differences_table(
    first: Run, other: Run, by_benchmark: Mapping[str, Mapping[str, Estimate]]
) -> str:
    metrics = list(
        dict.fromkeys(metric for by_metric in by_benchmark.values() for metric in by_metric)
    )
    lines = [
        f"| | {' | '.join(metrics)} | became right | became wrong |",
        "| --- |" + " --- |" * len(metrics) + " ---: | ---: |",
    ]
    for name, by_metric in _without_second_mean(by_benchmark).items():
        title, counts = "**mean over benchmarks**", " | "
        if name != OVERALL:
            flipped = flips(first, other, name)
            title, counts = (
                plain(name),
                f"{len(flipped.became_right)} | {len(flipped.became_wrong)}",
            )
        lines.append(
            f"| {title} | "
            f"{' | '.join(_signed(by_metric.get(metric)) for metric in metrics)} | {counts} "
            "|"
        )
    return "\n".join(lines)


def _signed(difference: Estimate | None) -> str:
    """A difference with its interval, bold if the interval excludes zero."""
    if difference is None:
        return "-"
    value, low, high = (_number(end) for end in (difference.value, difference.low, difference.high))
    clear = difference.low > 0 or difference.high < 0
    return f"**{value}** ({low} to {high})" if clear else f"{value} ({low} to {high})"


def _number(value: float) -> str:
    if value == 0:
        return number(0.0)
    return ("+" if value > 0 else "-") + number(abs(value))


def _flips_text(first: Run, other: Run) -> str:
    lines = []
    for name in first.scores:
        flipped = flips(first, other, name)
        for title, places in (
            ("became right", flipped.became_right),
            ("became wrong", flipped.became_wrong),
        ):
            if places:
                more = f", the first {SHOWN_FLIPS}" if len(places) > SHOWN_FLIPS else ""
                lines += ["", f"{plain(name)}, {title} ({len(places)}{more}):", ""]
                lines += [_flip(first, other, name, place) for place in places[:SHOWN_FLIPS]]
    return "\n".join(lines).strip() or "No question flipped."


def _flip(first: Run, other: Run, benchmark: str, place: int) -> str:
    question = first.scores[benchmark].questions[place]
    before, after = (run.scores[benchmark].column("mean")[place] for run in (first, other))
    end = plain(first.prompts[question])[-PROMPT_END:]
    return f"- {plain(question[0])} (Mean@n {number(before)} to {number(after)}): ...{end}"


def methods_markdown(
    first: Sequence[Run], second: Sequence[Run], comparisons: Mapping[str, Comparison]
) -> str:
    """The text for two methods, each with several training runs."""
    lines = [
        "| Mean@n | questions | a | b | b minus a | Student's | deviation | resolvable | |",
        "| --- | ---: | --- | --- | --- | --- | ---: | ---: | --- |",
    ]
    for name, comparison in _without_second_mean(comparisons).items():
        title, questions = "**mean over benchmarks**", ""
        if name != OVERALL:
            title, questions = plain(name), str(len(first[0].scores[name].questions))
        cells = [
            with_interval(asdict(comparison.first)),
            with_interval(asdict(comparison.second)),
            _signed(comparison.difference),
            f"{_number(comparison.student.low)} to {_number(comparison.student.high)}",
            " / ".join(number(deviation) for deviation in comparison.deviations),
            number(comparison.resolvable),
            methods_verdict(comparison),
        ]
        lines.append(f"| {title} | {questions} | {' | '.join(cells)} |")
    names = [", ".join(plain(run.name) for run in runs) for runs in (first, second)]
    title = f"# Method a ({names[0]}) and method b ({names[1]})"
    return "\n\n".join([title, pairing([*first, *second]), "\n".join(lines), METHODS_NOTE])


def methods_verdict(comparison: Comparison) -> str:
    """In words, by Student's interval: which method is better, or that these runs cannot tell."""
    if comparison.student.low <= 0 <= comparison.student.high:
        if comparison.resolvable is None:
            return "cannot be resolved"
        return (
            f"cannot be resolved (these runs resolve {100 * comparison.resolvable:.1f} points "
            "or more)"
        )
    return "b higher" if comparison.difference.value > 0 else "b lower"
