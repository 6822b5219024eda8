"""Bayes@N against its paper's package and against draws of the posterior; the curves of pass@k."""

from math import sqrt

import numpy as np
import pytest
from test_eval_estimates import rows_of

from exgrpo_eval.estimate import bayes, pass_curves
from exgrpo_eval.estimate.bayes import posterior
from exgrpo_eval.estimate.estimates import estimate, score


def test_the_example_of_the_papers_package():
    """Outcomes [[0, 1, 2, 2, 1], [1, 1, 0, 2, 2]] with weights 0, 1/2, 1: its README says 0.5625
    and 0.091998.
    """
    found = posterior(np.array([[1, 2, 2], [1, 2, 2]]), (0.0, 0.5, 1.0))
    assert (found.value, found.deviation) == pytest.approx((0.5625, 0.091998), abs=5e-7)


def test_right_or_wrong_is_the_beta_posterior():
    """c of n right: mean (c + 1)/(n + 2), variance of Beta(c + 1, n - c + 1)."""
    found = posterior(np.array([[5, 3]]))
    assert found.value == pytest.approx(4 / 10) and found.deviation**2 == pytest.approx(
        4 * 6 / 10**2 / 11
    )


def test_mean_and_deviation_are_those_of_the_posteriors_draws():
    counts = np.random.default_rng(0).integers(0, 9, size=(20, 3))
    weights = np.array([0.0, 0.3, 1.0])
    rng = np.random.default_rng(1)
    draws = np.mean([rng.dirichlet(each + 1, size=40_000) @ weights for each in counts], axis=0)
    found = posterior(counts, weights)
    assert found.value == pytest.approx(draws.mean(), abs=4 * draws.std() / 200)
    assert found.deviation == pytest.approx(draws.std(), rel=0.02)
    assert np.mean((draws > found.low) & (draws < found.high)) == pytest.approx(0.95, abs=0.01)


def test_it_orders_runs_as_mean_at_n_does():
    """(n Mean@n + 1)/(n + 2), for any number of questions."""
    own = score(rows_of("x", ["Aaaa" * 8, "AAAa" * 8, "aaaa" * 8]))["x"]
    assert bayes.of_scores(own).value == pytest.approx((32 * own.column("mean").mean() + 1) / 34)


def test_it_is_left_out_where_its_prior_decides():
    """Below 9 samples for each of two categories; and where Mean@n is outside its interval, as with
    many questions.
    """
    shown = [
        bayes.of_scores(score(rows_of("x", ["Aa" * (n // 2)] * 5))["x"]) is not None
        for n in (4, 16, 18, 32)
    ]
    assert shown == [False, False, True, True]
    hard = "A" * 2 + "a" * 30  # .062, which the prior moves to .088
    few, many = (bayes.of_scores(score(rows_of("x", [hard] * count))["x"]) for count in (5, 500))
    assert few.value == pytest.approx(3 / 34) and many is None
    assert bayes.mean([few, many], 2 / 32) is None
    assert (
        bayes.mean([few] * 2, 2 / 32).value == few.value and bayes.mean([few] * 500, 2 / 32) is None
    )


def test_credible_intervals_cover_chances_drawn_from_the_prior():
    rng, hits = np.random.default_rng(0), 0
    for _ in range(2_000):
        chances = rng.random(30)
        correct = rng.binomial(8, chances)
        found = posterior(np.stack([8 - correct, correct], axis=1))
        hits += found.low <= chances.mean() <= found.high
    assert hits / 2_000 == pytest.approx(0.95, abs=4 * sqrt(0.95 * 0.05 / 2_000))


def test_the_interval_stays_in_the_range_and_the_mean_weighs_benchmarks_alike():
    found = posterior(np.array([[0, 1]]))
    assert found.high == 1 and found.low > 0
    both = bayes.mean([found, posterior(np.array([[5, 3], [5, 3]]))], 0.5)
    assert both.value == pytest.approx((2 / 3 + 0.4) / 2)
    assert both.deviation == pytest.approx(sqrt(found.deviation**2 + 4 * 6 / 10**2 / 11 / 2) / 2)


TABLE = [f"{'A' * (question % 7):a<6}" for question in range(40)]


def test_a_curve_goes_through_the_tables_estimates():
    scores = score(rows_of("x", TABLE) + rows_of("y", ["A", "a"]))
    found, table = pass_curves.curves(scores), estimate(scores)["x"]
    assert list(found) == ["x"] and found["x"]["k"] == [1, 2, 3, 4, 5, 6]
    for k in (1, 2, 4):
        ends = [found["x"][end][k - 1] for end in ("value", "low", "high")]
        assert ends == pytest.approx(
            [getattr(table[f"pass@{k}"], end) for end in ("value", "low", "high")]
        )
    best = table["best"]
    assert [found["x"][end][-1] for end in ("value", "low", "high")] == pytest.approx(
        [best.value, best.low, best.high]
    )
    assert found["x"]["value"] == sorted(found["x"]["value"])


def test_one_sample_each_has_no_curve():
    assert pass_curves.curves(score(rows_of("y", ["A", "a"]))) == {}


def test_long_curves_share_their_points():
    """Of 100 and 1,000 samples: both begin alike, so that one axis serves both, and each ends at
    its n.
    """
    found = pass_curves.ks([100, 1_000])
    assert found[0] == 1 and found[-1] == 1_000 and 100 in found and len(found) <= 65
    assert pass_curves.ks([4, 64]) == list(range(1, 65))
