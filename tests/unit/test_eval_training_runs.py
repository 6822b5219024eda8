"""Two methods with several training runs each: closed forms, coverage, the command line and its
picture.
"""

from math import sqrt

import numpy as np
import pytest
from graded_rows import row, save

from exgrpo_eval import compare
from exgrpo_eval.estimate import training_runs
from exgrpo_eval.estimate.estimates import Scores
from exgrpo_eval.estimate.training_runs import student_quantile
from exgrpo_eval.reports import command as report

SAMPLES = 8


def scores(means, name="x"):
    questions = tuple((f"{name}{number}", "gold") for number in range(len(means)))
    return {
        name: Scores(
            questions,
            tuple(id_ for id_, _ in questions),
            SAMPLES,
            ("mean",),
            np.array(means)[:, None],
        )
    }


def method(rng, base, runs, deviation):
    """Runs whose chances of success lie around those of `base`, each run higher or lower on all
    questions.
    """
    chances = np.clip(base + rng.normal(0, deviation, size=(runs, 1)), 0, 1)
    return [scores(rng.binomial(SAMPLES, own) / SAMPLES) for own in chances]


def values(runs):
    return np.stack([run["x"].column("mean") for run in runs])


def population(values_RQ):
    """Variances, over the runs, questions and what is left, each divided by its number: no estimate
    of anything.
    """
    rest = values_RQ - values_RQ.mean(1, keepdims=True) - values_RQ.mean(0) + values_RQ.mean()
    return values_RQ.mean(1).var(), rest.var()


def test_the_bootstrap_has_the_variance_of_its_closed_form():
    """Var = s2_q/Q + sum over methods of s2_r/(R - 1) + s2_e/(Q (R - 1)), the s2 over all, not all
    but one.
    """
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.8, size=40)
    first, second = method(rng, base, 3, 0.05), method(rng, base, 5, 0.03)
    by_method = [training_runs._by_cluster([run["x"] for run in runs]) for runs in (first, second)]
    drawn = [training_runs._run_weights(len(runs), rng) for runs in (first, second)]
    draws = training_runs._draws(by_method, drawn, rng)
    expected = (values(second).mean(0) - values(first).mean(0)).var() / 40
    for runs in (first, second):
        of_runs, rest = population(values(runs))
        expected += of_runs / (len(runs) - 1) + rest / 40 / (len(runs) - 1)
    found = draws[1] - draws[0]
    assert found.mean() == pytest.approx(0, abs=4 * sqrt(expected / len(found)))
    assert found.var() == pytest.approx(
        expected, rel=0.06
    )  # the standard error of a variance of 10,000 is 1.4 %


def test_runs_that_are_equal_leave_the_questions_variance_alone():
    """Every run of a method is the same: what remains is the paired interval over questions."""
    rng = np.random.default_rng(0)
    first, second = (rng.binomial(SAMPLES, 0.5, size=60) / SAMPLES for _ in range(2))
    found = training_runs.compare([scores(first)] * 3, [scores(second)] * 3)
    gaps = second - first
    error = gaps.std(ddof=1) / sqrt(60)
    each = found["x"]
    assert each.deviations == (0, 0) and each.difference.value == pytest.approx(gaps.mean())
    assert each.student.high - each.difference.value == pytest.approx(student_quantile(59) * error)
    assert each.difference.high - each.difference.low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_questions_that_are_alike_leave_the_two_sample_t_test():
    """All questions of a run score the same: Welch's interval of the runs' means."""
    first, second = np.array([0.25, 0.5, 0.375, 0.5]), np.array([0.5, 0.625, 0.75])
    found = training_runs.compare(
        *([scores([mean] * 20) for mean in means] for means in (first, second))
    )["x"]
    parts = [means.var(ddof=1) / len(means) for means in (first, second)]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    half = student_quantile(freedom) * sqrt(sum(parts))
    assert found.deviations == pytest.approx((first.std(ddof=1), second.std(ddof=1)))
    assert found.student.high - found.difference.value == pytest.approx(half)
    assert found.difference.value == pytest.approx(second.mean() - first.mean())


@pytest.mark.parametrize(("runs", "deviation"), [(2, 0.03), (3, 0.0), (3, 0.06), (5, 0.03)])
def test_students_interval_covers_as_often_as_it_says_or_more(runs, deviation):
    """Two equal methods: at least 95 % of the intervals hold 0, but for four standard errors."""
    rng, hits, simulated = np.random.default_rng(runs), 0, 1_000
    for _ in range(simulated):
        base = rng.uniform(0.2, 0.8, size=100)
        by_method = [values(method(rng, base, runs, deviation)) for _ in range(2)]
        centred = [each - each.mean() for each in by_method]
        error, quantile = training_runs._error(training_runs._parts(centred), [runs, runs])
        hits += abs(by_method[1].mean() - by_method[0].mean()) <= quantile * error
    assert hits / simulated >= 0.95 - 4 * sqrt(0.95 * 0.05 / simulated)


@pytest.mark.parametrize("deviation", [0.0, 0.04])
def test_the_parts_add_up_to_the_variance(deviation):
    """The same questions, whose chances differ between the methods by chance: the parts' sum is the
    true variance.
    """
    rng, simulated, found, gaps = np.random.default_rng(0), 2_000, [], []
    for _ in range(simulated):
        base = rng.uniform(0.3, 0.7, size=50)
        by_method = [values(method(rng, base, 3, deviation)) for _ in range(2)]
        parts = training_runs._parts([each - each.mean() for each in by_method])
        found.append(parts.questions + sum(parts.runs) - parts.both)
        gaps.append(by_method[1].mean() - by_method[0].mean())
    assert np.mean(found) == pytest.approx(np.var(gaps), rel=4 * sqrt(2 / simulated))


def test_overall_draws_a_run_once_for_all_benchmarks():
    """Two benchmarks on which every run is equally good or bad: the mean over them is no surer than
    each.
    """
    means = [[0.25, 0.5, 0.75], [0.5, 0.625, 0.875]]
    methods = [[{**scores([m] * 10), **scores([m] * 10, "y")} for m in own] for own in means]
    found = training_runs.compare(*methods)
    widths = {name: each.difference.high - each.difference.low for name, each in found.items()}
    assert list(found) == ["x", "y", "overall"]
    assert (
        widths["overall"] == pytest.approx(widths["x"])
        and found["overall"].student == found["x"].student
    )


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (3.9, 3.182), (10, 2.228), (15, 2.131), (30, 2.042), (1e9, 1.960)],
)
def test_quantiles_of_student(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=1e-3)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    found = {}
    for name, gain in (("a", 0.0), ("b", 0.25)):
        for run in range(3):
            rows = [
                row("math", q, s, bool(rng.random() < 0.3 + gain))
                for q in range(60)
                for s in range(4)
            ]
            found[f"{name}{run}"] = save(
                tmp_path / f"{name}{run}.jsonl", rows + [row("aime", 99, 0, True)]
            )
    return found


def test_methods_on_the_command_line(files, tmp_path, capsys):
    runs = {name: [str(path) for key, path in files.items() if key[0] == name] for name in "ab"}
    compare.main(
        ["--runs_a", *runs["a"], "--runs_b", *runs["b"], "--picture", str(tmp_path / "methods.svg")]
    )
    text = capsys.readouterr().out
    [line] = [line for line in text.splitlines() if line.startswith("| math | 60 | ")]
    assert (
        line.endswith("| b higher |")
        and "# Method a (a0, a1, a2) and method b (b0, b1, b2)" in text
    )
    assert "| aime | 1 | 1.000 (.207 to 1.000) |" in text and "cannot be resolved" in text
    picture = (tmp_path / "methods.svg").read_text()
    assert all(
        f">{word}</text>" in picture
        for word in ("method a", "method b", "math", "aime", "mean", "Mean@n")
    )


def test_pictures_of_files_and_of_a_report(files, tmp_path, capsys):
    pair = [str(files["a0"]), str(files["b0"])]
    compare.main([*pair, "--picture", str(tmp_path / "c.pdf")])
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
    compare.main([*pair, "--picture", str(tmp_path / "c.svg")])
    assert ">a0</text>" in (tmp_path / "c.svg").read_text()
    once = (tmp_path / "c.svg").read_bytes()
    compare.main([*pair, "--picture", str(tmp_path / "c.svg")])
    assert (tmp_path / "c.svg").read_bytes() == once
    files["a0"].with_suffix(".run.json").write_text("{}")
    report.main([str(files["a0"]), "--picture", str(tmp_path / "r.svg")])
    assert ">majority@n</text>" in (tmp_path / "r.svg").read_text()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "must be two or more"),
        (["A", "--runs_a", "A", "A", "--runs_b", "B", "B"], "must not be given with --runs_a"),
        (["--runs_a", "A", "--runs_b", "B", "B"], "--runs_a: 1 files; must be two or more"),
        (["--runs_a", "A", "A"], "--runs_b: 0 files; must be two or more"),
        (["A", "B", "--picture", "x.png"], "--picture=x.png: must end in .pdf or .svg"),
        (["A", "B", "--picture", "none/x.pdf"], "--picture=none/x.pdf: its folder must exist"),
    ],
)
def test_what_cannot_be_compared_gets_one_line(flags, complaint, capsys):
    with pytest.raises(SystemExit) as stopped:
        compare.main(flags)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and complaint in error and error.count("\n") == 1
