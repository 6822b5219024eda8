"""What eval/compare.py prints, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from eval import paired_tests
from eval.estimates import OVERALL, Estimate, estimate
from eval.paired_runs import Run, differences, flips
from eval.paired_tests import PairedTest
from eval.report_text import hardware, number, plain, with_interval
from eval.training_runs import Comparison

SHOWN_FLIPS = 20
PROMPT_END = 100  # characters of a question in the list of flips
TESTS_NOTE = (
    "p: a paired test of Mean@n that flips the signs of the questions' differences, exact with mid-p (with one sample "
    "a question McNemar's); of the mean over benchmarks by 20,000 drawn flips. Corrected: after Holm, over benchmarks. "
    "Resolvable: the smallest true difference that such a test at 5 % finds with 80 % power."
)

METHODS_NOTE = (
    "In brackets: 95 % intervals by a bootstrap over training runs and questions. Student's: the interval of the "
    "variance by its parts, which decides what is said. Deviation: of the runs' means, a / b. Resolvable: the smallest "
    "true difference that so many runs and questions find with 80 % power."
)


def markdown(runs: Sequence[Run]) -> str:
    """The whole comparison."""
    parts = ["# " + " and ".join(run.name for run in runs), _side_by_side(runs), _made(runs)]
    for other in runs[1:]:
        found = differences(runs[0], other)
        parts += [f"## {plain(other.name)} less {plain(runs[0].name)}", _differences_table(runs[0], other, found)]
        parts += [_tests_table(runs[0], other, found), TESTS_NOTE, _flips_text(runs[0], other)]
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


def _made(runs: Sequence[Run]) -> str:
    """What each run's numbers rest on, of all responses of its file."""
    lines = ["| run | model | hardware | cut off |", "| --- | --- | --- | ---: |"]
    for run in runs:
        model = plain(str(run.facts.get("model_path", "-")))
        lines.append(f"| {plain(run.name)} | {model} | {plain(hardware(run.facts) or '-')} | {number(run.cut_off)} |")
    return "\n".join(lines)


def _tests_table(first: Run, other: Run, found: Mapping[str, Mapping[str, Estimate]]) -> str:
    """Of each benchmark its test, and in words what the numbers allow to say."""
    lines = [
        "| Mean@n | difference | p | p, corrected | resolvable | |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for name, test in paired_tests.compare(first.scores, other.scores).items():
        title = "**mean over benchmarks**" if name == OVERALL else plain(name)
        p_values = f"{_p_value(test.p)} | {_p_value(test.corrected)}"
        words = verdict(found[name]["mean"], test)
        lines.append(f"| {title} | {_signed(found[name]['mean'])} | {p_values} | {number(test.resolvable)} | {words} |")
    return "\n".join(lines)


def verdict(found: Estimate, test: PairedTest) -> str:
    """In words: which is better, or that these questions and samples do not tell."""
    if found.low <= 0 <= found.high:
        least = (
            "" if test.resolvable is None else f" (these samples resolve {100 * test.resolvable:.1f} points or more)"
        )
        return f"cannot be resolved{least}"
    better = "higher" if found.value > 0 else "lower"
    if test.p >= paired_tests.LEVEL:
        return f"{better} by the interval, not by the test"
    if test.corrected is not None and test.corrected >= paired_tests.LEVEL:
        return f"{better} if it were the only benchmark, not after the correction"
    return better


def _p_value(p: float | None) -> str:
    return "<.001" if p is not None and p < 0.001 else number(p)


def _differences_table(first: Run, other: Run, by_benchmark: Mapping[str, Mapping[str, Estimate]]) -> str:
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


def methods_markdown(first: Sequence[Run], second: Sequence[Run], found: Mapping[str, Comparison]) -> str:
    """The comparison of two methods, each with several training runs."""
    lines = [
        "| Mean@n | questions | a | b | b less a | Student's | deviation | resolvable | |",
        "| --- | ---: | --- | --- | --- | --- | ---: | ---: | --- |",
    ]
    for name, each in found.items():
        title, questions = "**mean over benchmarks**", ""
        if name != OVERALL:
            title, questions = plain(name), str(len(first[0].scores[name].questions))
        means = f"{with_interval(asdict(each.first))} | {with_interval(asdict(each.second))}"
        student = f"{_number(each.student.low)} to {_number(each.student.high)}"
        deviations = " / ".join(number(own) for own in each.deviations)
        cells = f"{means} | {_signed(each.difference)} | {student} | {deviations} | {number(each.resolvable)}"
        lines.append(f"| {title} | {questions} | {cells} | {methods_verdict(each)} |")
    names = [", ".join(plain(run.name) for run in runs) for runs in (first, second)]
    return "\n\n".join([f"# Method a ({names[0]}) and method b ({names[1]})", "\n".join(lines), METHODS_NOTE])


def methods_verdict(found: Comparison) -> str:
    """In words, by Student's interval: which method is better, or that these runs do not tell."""
    if found.student.low <= 0 <= found.student.high:
        return f"cannot be resolved (these runs resolve {100 * found.resolvable:.1f} points or more)"
    return "b higher" if found.difference.value > 0 else "b lower"
