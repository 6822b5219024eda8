"""Mean@n, Best@n, pass@k, majority@n and their intervals: closed forms, identities, a
simulation.
"""

import itertools
import random
from math import comb, sqrt

import numpy as np
import pytest

from exgrpo_eval.estimate import estimates
from exgrpo_eval.estimate.estimates import (
    Estimate,
    bootstrap,
    estimate,
    generator,
    intervals,
    majority,
    mean_of,
    pass_at_k,
    percentiles,
    powers_of_two,
    score,
    wilson,
)

Z2 = 1.959964**2


def rows_of(benchmark, table):
    """A row a sample: `table` has a string a question, in which capitals are the right answers."""
    return [
        {
            "benchmark": benchmark,
            "question_id": f"{question:032x}",
            "answer": "gold",
            "correct": vote.isupper(),
            "vote": None if vote == "-" else vote,
        }
        for question, votes in enumerate(table)
        for vote in votes
    ]


@pytest.mark.parametrize(
    ("correct", "samples"), [(c, n) for n in range(1, 6) for c in range(n + 1)]
)
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(correct, samples):
    marks = [True] * correct + [False] * (samples - correct)
    for k in range(1, samples + 1):
        subsets = list(itertools.combinations(marks, k))
        assert pass_at_k(samples, correct, k) == pytest.approx(
            sum(map(any, subsets)) / len(subsets), abs=1e-15
        )


def test_pass_at_1_is_the_mean_and_pass_at_n_the_best():
    scores = score(rows_of("b", ["Aaaaaaaa", "aaaaaaaa", "AAAAAAAA", "AaAaAaAa"]))["b"]
    column = dict(zip(scores.metrics, scores.values_QM.T, strict=True))
    assert column["pass@1"] == pytest.approx(column["mean"]) and column["mean"].tolist() == [
        1 / 8,
        0,
        1,
        1 / 2,
    ]
    assert column["pass@8"].tolist() == column["best"].tolist() == [1, 0, 1, 1]
    assert column["pass@4"][3] == pytest.approx(1 - 1 / comb(8, 4))


def test_pass_at_k_averages_to_the_chance_of_k_fresh_samples():
    """Unbiased: over binomial counts its expectation is 1 - (1-p)^k exactly."""
    n, p = 12, 0.3
    for k in (1, 2, 4, 8):
        mean = sum(
            comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1)
        )
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


@pytest.mark.parametrize(
    ("votes", "chance"),
    [
        ("AAb", 1),
        ("Abb", 0),
        ("Ab", 1 / 2),
        ("Abc", 1 / 3),
        ("AAbbc", 1 / 2),
        ("--A", 1),  # no answer is no vote
        ("--", 0),
        ("", 0),
    ],
)
def test_majority(votes, chance):
    assert majority((None if v == "-" else v, v.isupper()) for v in votes) == pytest.approx(chance)


def test_majority_of_an_answer_judged_both_ways_is_its_share():
    assert majority([("x", True), ("x", True), ("x", False), ("y", False)]) == pytest.approx(2 / 3)


def test_powers_of_two():
    assert [powers_of_two(n) for n in (1, 2, 3, 4, 32, 33)] == [
        [1],
        [1, 2],
        [1, 2],
        [1, 2, 4],
        [1, 2, 4, 8, 16, 32],
        [1, 2, 4, 8, 16, 32],
    ]


def test_the_bootstrap_has_the_moments_of_its_closed_form():
    """Mean of the draws: the sample's. Variance: the sample's (over Q, not Q-1) by Q."""
    values_QM = np.random.default_rng(0).random((50, 2))
    draws_BM = bootstrap(values_QM, np.random.default_rng(1), resamples=40_000)
    assert draws_BM.mean(axis=0) == pytest.approx(
        values_QM.mean(axis=0), abs=4 * sqrt(1 / 12 / 50 / 40_000)
    )
    assert draws_BM.var(axis=0) == pytest.approx(values_QM.var(axis=0) / 50, rel=0.03)


def test_the_interval_of_right_or_wrong_is_the_binomials_quantiles():
    """Of 40 questions 10 right, a draw's count is binomial(40, 1/4), whose 2.5 and 97.5 % quantiles
    are 5 and 16.
    """
    values_Q1 = np.array([[1.0]] * 10 + [[0.0]] * 30)
    [found] = percentiles(
        values_Q1.mean(axis=0), bootstrap(values_Q1, np.random.default_rng(0), 40_000)
    )
    cdf = np.cumsum([comb(40, c) * 0.25**c * 0.75 ** (40 - c) for c in range(41)])
    assert [int(np.searchsorted(cdf, q)) for q in (0.025, 0.975)] == [5, 16]
    assert found == Estimate(0.25, 5 / 40, 16 / 40)


def test_intervals_cover_the_truth_as_often_as_they_say():
    """Questions of random difficulty, 8 samples each: of 400 intervals for the mean nearly 95 %
    hold the truth.
    """
    rng, hits = np.random.default_rng(0), 0
    for _ in range(400):
        chances_Q = rng.beta(1, 1, size=100)  # mean 1/2
        values_Q1 = rng.binomial(8, chances_Q)[:, None] / 8
        [found] = percentiles(values_Q1.mean(axis=0), bootstrap(values_Q1, rng, 1_000))
        hits += found.low <= 0.5 <= found.high
    assert 0.915 <= hits / 400 <= 0.975  # 0.945 or so; standard error 0.011


def test_chunks_do_not_change_the_size_of_a_bootstrap(monkeypatch):
    monkeypatch.setattr(estimates, "CHUNK", 70)
    assert bootstrap(np.ones((10, 3)), np.random.default_rng(0), 100).shape == (100, 3)


def test_overall_weighs_benchmarks_alike():
    rows = rows_of("small", ["A", "a"]) + rows_of("large", ["AAAA"] * 9 + ["aaaa"])
    found = estimate(score(rows))
    assert found["overall"]["mean"].value == pytest.approx((0.5 + 0.9) / 2)
    assert list(found) == ["small", "large", "overall"]
    assert set(found["overall"]) == {"mean", "best", "majority", "pass@1"}  # what both have
    assert "pass@4" in found["large"]
    assert found["small"]["mean"].low <= 0.5 <= found["small"]["mean"].high


def test_a_draw_without_a_small_benchmarks_questions_counts_its_mean():
    """Drawn together, since the large benchmark has its question too; a third of the draws go
    without.
    """
    found = estimate(score(rows_of("large", ["A"] * 40) + rows_of("small", ["A"])))
    of_benchmarks = [found[name]["mean"] for name in ("large", "small")]
    assert found["overall"]["mean"] == mean_of(
        [of_benchmarks]
    )  # in one group: the benchmarks share a question
    assert [each.low for each in of_benchmarks] == pytest.approx([1 / (1 + Z2 / 40), 1 / (1 + Z2)])


def test_intervals_depend_on_the_seed_and_not_on_other_benchmarks():
    values = [f"{'A' * random.Random(i).randrange(9):a<8}" for i in range(60)]
    alone, together = (
        estimate(score(rows_of("x", values))),
        estimate(score(rows_of("y", ["A"]) + rows_of("x", values))),
    )
    assert alone["x"] == together["x"] == alone["overall"]
    assert estimate(score(rows_of("x", values)), seed=1)["x"] != alone["x"]
    assert generator(0, "x").random() != generator(0, "y").random()


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_of_the_literature(right, count, low, high):
    """Newcombe 1998 (doi 10.1002/(SICI)1097-0258(19980430)17:8<857), table I, method 3."""
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-5)
    assert wilson(1 - right / count, count) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize("samples", [1, 4])
def test_nothing_right_is_no_certainty(samples):
    """0 of 80 questions: up to z^2 / (80 + z^2) of all may be right; and the other way round."""
    none = estimate(score(rows_of("x", ["a" * samples] * 80)))
    most = Z2 / (80 + Z2)
    for metric in ("mean", "best", "majority", "pass@1"):
        found = none["x"][metric]
        assert (found.value, found.low, found.high) == pytest.approx((0, 0, most))
    assert most == pytest.approx(0.0458, abs=5e-5)
    everything = estimate(score(rows_of("x", ["A" * samples] * 80)))["x"]["mean"]
    assert (everything.value, everything.low, everything.high) == pytest.approx((1, 1 - most, 1))
    assert none["overall"] == none["x"]


@pytest.mark.parametrize(
    ("table", "few"),
    [
        (["A"] * 5 + ["a"] * 5, False),
        (["A"] * 5 + ["a"] * 4, True),  # nine questions
        (["A"] * 4 + ["a"] * 76, True),  # four right ones
        (["A"] * 76 + ["a"] * 4, True),
        (["Aaaa"] * 5 + ["aaaa"] * 75, False),
        (["Aa"] * 40, True),  # all alike
    ],
)
def test_where_too_few_questions_differ_the_interval_is_wilsons(table, few):
    scores = score(rows_of("x", table))["x"]
    found, values = estimate({"x": scores})["x"]["mean"], scores.column("mean")
    drawn = percentiles(values.mean(keepdims=True), bootstrap(values[:, None], generator(0, "x")))[
        0
    ]
    if not few:
        assert found == drawn
    elif len(set(table)) > 1:
        assert (found.low, found.high) == wilson(values.mean(), len(table))
    else:
        others = wilson(0.0, 40)[1]
        assert (found.low, found.high) == pytest.approx((0.5 - others / 2, 0.5 + others / 2))


def test_rare_success_is_covered():
    """80 questions of which one in fifty is answered: a bootstrap alone holds the truth in three of
    four runs.
    """
    rng, hits, simulated = np.random.default_rng(0), np.zeros(2), 400
    for right in rng.binomial(80, 0.02, size=simulated):
        scores = score(rows_of("x", ["A"] * right + ["a"] * (80 - right)))["x"]
        means_BM = bootstrap(scores.values_QM, rng, 500)
        for place, found in enumerate(
            (percentiles(scores.values_QM.mean(axis=0), means_BM), intervals(scores, means_BM))
        ):
            hits[place] += found[0].low <= 0.02 <= found[0].high
    assert hits[0] / simulated < 0.85 and hits[1] / simulated >= 0.95 - 4 * sqrt(
        0.95 * 0.05 / simulated
    )


def test_the_mean_of_intervals_adds_their_squares():
    """Two benchmarks without a right response: the upper end is sqrt(a^2 + b^2) / 2."""
    other = [
        {**row, "question_id": f"other {row['question_id']}"} for row in rows_of("y", ["a"] * 30)
    ]
    found = estimate(score(rows_of("x", ["a"] * 80) + other))
    ends = [found[name]["mean"].high for name in ("x", "y")]
    assert found["overall"]["mean"] == Estimate(
        0, 0, pytest.approx(sqrt(ends[0] ** 2 + ends[1] ** 2) / 2)
    )


def test_questions_with_unlike_samples_are_refused():
    with pytest.raises(ValueError, match="benchmark=x: 1 to 2 samples per question"):
        score(rows_of("x", ["Aa", "A"]))
