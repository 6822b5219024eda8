"""Paired tests of two runs: enumeration, closed forms, and how often they reject where there is
nothing to find.
"""

import itertools
from math import comb, sqrt

import numpy as np
import pytest
from test_eval_estimates import rows_of

from exgrpo_eval.estimate import paired_tests
from exgrpo_eval.estimate.estimates import Estimate, bootstrap, estimate, score, sharing, wilson
from exgrpo_eval.estimate.paired_tests import (
    PairedTest,
    drawn_sign_flip,
    holm,
    quantiles,
    sign_flip,
    standard_error,
)
from exgrpo_eval.reports.compare_text import verdict

SIMULATED = 10_000


@pytest.mark.parametrize("seed", range(20))
def test_the_p_value_is_that_of_all_flips(seed):
    rng = np.random.default_rng(seed)
    differences = rng.integers(-4, 5, size=rng.integers(1, 11)) * rng.integers(1, 4)
    sums = [
        abs(np.dot(signs, differences))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    observed = abs(differences.sum())
    expected = np.mean(
        [1.0 if total > observed else 0.5 if total == observed else 0.0 for total in sums]
    )
    # at a sum of 0 both halves of the tie are the observed one
    expected = 1.0 if observed == 0 else expected
    assert sign_flip(differences) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("gained", "lost"), [(9, 2), (3, 3), (0, 7), (60, 31), (1, 0)])
def test_with_one_sample_a_question_it_is_mcnemars_mid_p(gained, lost):
    differences = np.array([1] * gained + [-1] * lost + [0] * 13)
    chances = [
        comb(gained + lost, count) / 2 ** (gained + lost) for count in range(gained + lost + 1)
    ]
    fewer = min(gained, lost)
    closed = 1.0 if gained == lost else 2 * sum(chances[:fewer]) + chances[fewer]
    assert sign_flip(differences) == pytest.approx(closed, abs=1e-13)


def test_large_sums_keep_their_precision():
    """Of 300 equal differences of 1,000, all of one sign: 2 * 2^-300 and half of it for the tie is
    0 to 15 digits.
    """
    assert sign_flip(np.full(300, 1000)) < 1e-15
    assert sign_flip(np.array([1000] * 150 + [-1000] * 150)) == pytest.approx(1)
    uneven = np.random.default_rng(0).integers(-32, 33, size=2_000)
    normal = 2 * (1 - paired_tests.NormalDist().cdf(abs(uneven.sum()) / sqrt((uneven**2).sum())))
    assert sign_flip(uneven) == pytest.approx(normal, abs=1e-3)


def test_drawn_flips_come_to_the_same():
    differences = np.random.default_rng(1).integers(-3, 5, size=40)
    drawn = drawn_sign_flip(differences / 7, np.random.default_rng(0), 40_000)
    exact = sign_flip(differences)
    assert drawn == pytest.approx(exact, abs=4 * sqrt(exact * (1 - exact) / 40_000))
    assert drawn_sign_flip(np.array([0.1, -0.1]), np.random.default_rng(0)) == 1


def same_chances(rng, questions, samples):
    """Differences in right samples of two runs with the same chance of success on each question."""
    chances = rng.beta(0.7, 0.9, size=questions)
    return rng.binomial(samples, chances) - rng.binomial(samples, chances)


@pytest.mark.parametrize(("questions", "samples"), [(100, 8), (30, 32), (500, 1), (40, 4)])
def test_false_positives_at_five_percent_are_five_in_a_hundred(questions, samples):
    rng = np.random.default_rng(questions)
    rejected = sum(
        sign_flip(same_chances(rng, questions, samples)) < 0.05 for _ in range(SIMULATED)
    )
    assert rejected / SIMULATED == pytest.approx(0.05, abs=4 * sqrt(0.05 * 0.95 / SIMULATED))


def test_holm_keeps_any_false_positive_at_five_percent():
    rng = np.random.default_rng(0)
    families, tests = 2_000, 5
    found = [
        min(holm([sign_flip(same_chances(rng, 60, 8)) for _ in range(tests)]))
        for _ in range(families)
    ]
    rejected = np.mean(np.array(found) < 0.05)
    assert rejected == pytest.approx(
        1 - (1 - 0.05 / tests) ** tests, abs=4 * sqrt(0.05 * 0.95 / families)
    )


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([0.02]) == [0.02]


def test_a_resolvable_difference_is_found_four_times_of_five():
    """100 questions, 8 samples; the true difference is what the first data set calls resolvable."""
    rng = np.random.default_rng(3)
    chances = rng.uniform(0.2, 0.6, size=100)
    assert quantiles() == pytest.approx(1.959964 + 0.841621, abs=1e-6)
    error = sqrt(2 * (chances * (1 - chances)).mean() / 8 / 100)
    gain, found = quantiles() * error, 0
    for _ in range(2_000):
        first, other = rng.binomial(8, chances), rng.binomial(8, chances + gain)
        found += sign_flip(other - first) < 0.05
    assert found / 2_000 == pytest.approx(0.8, abs=4 * sqrt(0.8 * 0.2 / 2_000))


def test_standard_errors_by_question_and_by_cluster():
    values = np.random.default_rng(0).random(50)
    alone = [str(number) for number in range(50)]
    assert standard_error(values, alone) == pytest.approx(values.std(ddof=1) / sqrt(50))
    twice = standard_error(np.repeat(values, 2), [name for name in alone for _ in range(2)])
    assert twice == pytest.approx(values.std(ddof=1) / sqrt(50))  # a second copy tells nothing
    assert standard_error(values, ["one"] * 50) is None


def test_the_bootstrap_of_clusters_has_its_closed_form():
    values = np.random.default_rng(0).random(60)
    clusters = [f"{question // 3}" for question in range(60)]
    draws = bootstrap(values[:, None], np.random.default_rng(1), 40_000, clusters)[:, 0]
    means = values.reshape(20, 3).mean(axis=1)
    assert draws.var() == pytest.approx(means.var() / 20, rel=0.03)
    assert draws.var() != pytest.approx(values.var() / 60, rel=0.03)


def test_copies_of_a_question_do_not_narrow_an_interval():
    table = ["Aaaa", "AAAA", "aaaa", "AAaa", "AAAa", "Aaaa"] * 4
    once = rows_of("b", table)
    again = [
        {**row, "answer": "another gold"} for row in once
    ]  # the same questions, with another answer
    assert len(score(once + again)["b"].questions) == 48
    found, expected = (estimate(score(rows))["b"]["mean"] for rows in (once + again, once))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_a_rows_cluster_goes_before_its_question():
    rows = [{**row, "cluster": "all"} for row in rows_of("b", ["Aa", "aa", "AA"])]
    found = estimate(score(rows))["b"]["mean"]
    assert (found.value, found.low, found.high) == pytest.approx(
        (0.5, 0.5 - wilson(0.0, 1)[1] / 2, 0.5 + wilson(0.0, 1)[1] / 2)
    )


def test_questions_that_benchmarks_share_are_drawn_once_for_their_mean():
    """A second benchmark with the same questions tells nothing: the interval of the mean stays as
    wide.
    """
    table = [f"{'A' * (question % 9):a<8}" for question in range(60)]
    alone, twice = (
        estimate(score(rows))
        for rows in (rows_of("x", table), rows_of("x", table) + rows_of("y", table))
    )
    widths = [
        found["overall"]["mean"].high - found["overall"]["mean"].low for found in (alone, twice)
    ]
    assert widths[1] == pytest.approx(widths[0], rel=0.03)
    others = [{**row, "question_id": f"other {row['question_id']}"} for row in rows_of("y", table)]
    apart = estimate(score(rows_of("x", table) + others))["overall"]["mean"]
    assert apart.high - apart.low == pytest.approx(widths[0] / sqrt(2), rel=0.03)


def test_benchmarks_are_linked_by_what_they_share():
    rows = rows_of("a", ["A", "a"]) + [{**row, "question_id": "z"} for row in rows_of("b", ["A"])]
    assert sharing(score(rows)) == []
    both = [
        {**row, "question_id": name}
        for row, name in zip(rows_of("c", ["A", "a"]), ("z", f"{0:032x}"), strict=True)
    ]
    assert sharing(score(rows + both)) == [["a", "b", "c"]]


def scores(table, name="b"):
    return score(rows_of(name, table))


def test_runs_that_are_alike_are_not_told_apart():
    table = ["Aa", "AA", "aa"]
    found = paired_tests.compare(scores(table), scores(table))
    assert found["b"] == found["overall"] == PairedTest(0.0, 1.0, None, None)


def test_the_test_of_two_benchmarks_and_of_their_mean():
    before = score(rows_of("x", ["aaaa"] * 12) + rows_of("y", ["AAaa", "Aaaa"] * 5))
    after = score(rows_of("x", ["Aaaa"] * 12) + rows_of("y", ["Aaaa", "AAaa"] * 5))
    found = paired_tests.compare(before, after)
    assert (found["x"].difference, found["y"].difference) == (0.25, 0.0)
    assert found["x"].p == pytest.approx(2**-12) and found["x"].corrected == pytest.approx(2**-11)
    assert found["y"].p == found["y"].corrected == 1
    assert found["overall"].difference == pytest.approx(0.125) and 0 < found["overall"].p < 0.05


def test_unlike_numbers_of_samples_have_a_common_unit():
    """One of two against one of three: differences of 1/6, in which no rounding may be."""
    found = paired_tests.compare(scores(["Aa"] * 7), scores(["Aaa"] * 7))["b"]
    assert found.difference == pytest.approx(-1 / 6) and found.p == pytest.approx(2**-7)


@pytest.mark.parametrize(
    ("ends", "test", "words"),
    [
        (
            (-0.01, 0.03),
            PairedTest(0.01, 0.2, None, 0.043),
            "cannot be resolved (these samples resolve 4.3 points or more)",
        ),
        ((0.0, 0.0), PairedTest(0.0, 1.0, None, None), "cannot be resolved"),
        ((0.01, 0.03), PairedTest(0.02, 0.01, 0.03, 0.02), "higher"),
        ((-0.03, -0.01), PairedTest(-0.02, 0.01, None, 0.02), "lower"),
        (
            (0.01, 0.03),
            PairedTest(0.02, 0.02, 0.06, 0.02),
            "higher if it were the only benchmark, not after the correction",
        ),
        (
            (0.001, 0.03),
            PairedTest(0.02, 0.06, None, 0.02),
            "higher by the interval, not by the test",
        ),
        (
            (-0.01, 0.03),
            PairedTest(0.02, 0.04, None, 0.02),
            "higher by the test, not by the interval",
        ),
    ],
)
def test_what_is_said(ends, test, words):
    assert verdict(Estimate(test.difference, *ends), test) == words
