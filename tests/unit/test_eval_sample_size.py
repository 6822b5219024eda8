"""Advice on the size of a run: closed forms, and simulated runs of the advised size."""

from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest
from eval_inputs import parquet
from eval_inputs import row as question_row
from graded_rows import row, save

from exgrpo_eval.estimate import paired_runs, sample_size
from exgrpo_eval.estimate.paired_tests import quantiles, sign_flip
from exgrpo_eval.estimate.sample_size import (
    Spread,
    measured,
    questions_needed,
    resolvable,
    samples_needed,
)

SIMULATED = 2_000
SPREAD = Spread(accuracy=0.4, between=0.5, correlation=0.7)


def chances(rng, spread, difference, questions):
    """Chances of success in two runs: each of two values, which gives exactly the spread."""
    agree = rng.random(questions) < (1 + spread.correlation) / 2
    sign = rng.choice([-1, 1], size=questions)
    pairs = []
    for accuracy, signs in (
        (spread.accuracy, sign),
        (spread.accuracy + difference, np.where(agree, sign, -sign)),
    ):
        pairs.append(accuracy + signs * sqrt(spread.between * accuracy * (1 - accuracy)))
    return pairs


@pytest.mark.parametrize(("difference", "samples"), [(0.08, 1), (0.08, 8), (0.05, 4)])
def test_paired_runs_of_the_advised_size_find_it_four_times_of_five(difference, samples):
    rng = np.random.default_rng(samples)
    questions, found = questions_needed(SPREAD, difference, samples, paired=True), 0
    for _ in range(SIMULATED):
        first, second = (
            rng.binomial(samples, p) for p in chances(rng, SPREAD, difference, questions)
        )
        found += sign_flip(second - first) < 0.05
    assert found / SIMULATED == pytest.approx(0.8, abs=4 * sqrt(0.8 * 0.2 / SIMULATED))


@pytest.mark.parametrize("samples", [1, 8])
def test_unpaired_runs_of_the_advised_size_find_it_four_times_of_five(samples):
    rng, difference = np.random.default_rng(samples), 0.08
    questions, found = questions_needed(SPREAD, difference, samples, paired=False), 0
    for _ in range(SIMULATED):
        first = rng.binomial(samples, chances(rng, SPREAD, difference, questions)[0]) / samples
        second = rng.binomial(samples, chances(rng, SPREAD, difference, questions)[1]) / samples
        error = sqrt((first.var(ddof=1) + second.var(ddof=1)) / questions)
        found += abs(second.mean() - first.mean()) > NormalDist().inv_cdf(0.975) * error
    assert found / SIMULATED == pytest.approx(0.8, abs=4 * sqrt(0.8 * 0.2 / SIMULATED))


def test_one_sample_unpaired_is_the_textbook_formula_of_two_proportions():
    """.5 against .6: (1.960 + 0.842)^2 (.25 + .24) / .01 = 384.6."""
    assert questions_needed(Spread(0.5, 0.3, 0.9), 0.1, 1, paired=False) == 385


def test_paired_limits():
    alike = Spread(0.5, 0.6, 1.0)
    assert alike.variance(0, 10**9, paired=True) == pytest.approx(0, abs=1e-8)  # only samples vary
    unlike = Spread(0.5, 0.6, 0.0)
    assert unlike.variance(0.1, 4, paired=True) == unlike.variance(0.1, 4, paired=False)
    assert unlike.variance(0, 1, paired=True) == pytest.approx(2 * 0.25)


@pytest.mark.parametrize("paired", [True, False])
def test_the_three_answers_agree(paired):
    questions = questions_needed(SPREAD, 0.05, 8, paired=paired)
    assert samples_needed(SPREAD, 0.05, questions, paired=paired) == 8
    assert resolvable(SPREAD, questions, 8, paired=paired) <= 0.05
    assert resolvable(SPREAD, questions - 1, 8, paired=paired) > 0.05
    assert samples_needed(SPREAD, 0.01, 50, paired=paired) is None
    assert resolvable(Spread(0.95, 0.5, 0.8), 2, 1, paired=paired) is None


def graded(path, rng, spread, questions, samples, name):
    found = [[], []]
    for rows, own in zip(found, chances(rng, spread, 0.1, questions), strict=True):
        for question, chance in enumerate(own):
            rows += [
                row(name, question, sample, bool(rng.random() < chance))
                for sample in range(samples)
            ]
    return [save(path / f"{name}{place}.jsonl", rows) for place, rows in enumerate(found)]


def test_a_pilot_tells_the_spread(tmp_path):
    files = graded(tmp_path, np.random.default_rng(0), SPREAD, 1_500, 4, "math")
    first, second = (paired_runs.load(path).scores["math"] for path in files)
    found = measured(Spread(0.1, 0.1, 0.1), first, second)
    assert found.accuracy == pytest.approx(0.4, abs=0.04)
    assert found.between == pytest.approx(0.5, abs=0.04) and found.correlation == pytest.approx(
        0.7, abs=0.05
    )
    assert measured(Spread(0.1, 0.1, 0.1), first, None).correlation == 0.1


def test_a_pilot_of_one_sample_tells_the_accuracy_alone(tmp_path):
    [path, _] = graded(tmp_path, np.random.default_rng(0), SPREAD, 50, 1, "math")
    found = measured(Spread(0.1, 0.2, 0.3), paired_runs.load(path).scores["math"], None)
    assert (found.between, found.correlation) == (0.2, 0.3) and found.accuracy != 0.1


def test_the_table(capsys):
    sample_size.main(["--difference", "2", "--questions", "500", "--accuracy", "0.4", "--n", "12"])
    text = capsys.readouterr().out
    spread = Spread(0.4, 0.5, 0.8)
    needed = [questions_needed(spread, 0.02, 12, paired=paired) for paired in (True, False)]
    assert f"| 12 | {needed[0]:,} | {needed[1]:,} |" in text and "| 64 | " in text
    assert "With 500 questions, paired: no number of samples is enough" in text
    assert quantiles() ** 2 * spread.variance(0.02, 12, paired=True) / 0.02**2 == pytest.approx(
        needed[0], abs=1
    )


def test_question_files_and_pilots_name_the_benchmarks(tmp_path, capsys):
    file = parquet(tmp_path, [question_row(f"q{n}", benchmark="math") for n in range(7)])
    files = graded(tmp_path, np.random.default_rng(0), SPREAD, 30, 4, "math")
    sample_size.main(
        [
            "--difference",
            "10",
            "--file",
            str(file),
            "--pilot",
            str(files[0]),
            "--correlation",
            "0.9",
        ]
    )
    text = capsys.readouterr().out
    assert "With 7 questions" in text and "math: accuracy" in text and "two runs .900" in text
    sample_size.main(["--difference", "10", "--pilot", *map(str, files)])
    assert "With 30 questions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--difference", "0"], "--difference=0: must be above 0"),
        (["--difference", "2", "--accuracy", "40"], "--accuracy=40: must be from 0 to 1"),
        (["--difference", "2", "--questions", "1"], "--questions=1: must be 2 or more"),
        (["--difference", "2", "--n", "0"], "--n=0: must be 1 or more"),
        (["--difference", "2", "--file", "none.parquet"], "--file=none.parquet: no such file"),
        (["--difference", "2", "--pilot", "a", "b", "c"], "--pilot: 3 files; must be one or two"),
    ],
)
def test_what_cannot_be_advised_on_gets_one_line(flags, complaint, capsys):
    with pytest.raises(SystemExit) as stopped:
        sample_size.main(flags)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and complaint in error and error.count("\n") == 1
