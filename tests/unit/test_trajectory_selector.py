"""Scores by hand, and the choice by score."""

import math

import numpy as np
import pytest

from exgrpo.experience.experience_helpers import effective_sample_size
from exgrpo.experience.trajectory_selector import TrajectorySelector, mean_entropy, perplexity


def test_mean_entropy_is_over_the_response_alone():
    assert mean_entropy([1.0, 2.0, 6.0]) == 3.0
    assert mean_entropy(np.array([9.0, 1.0, 2.0, math.nan], np.float32), [0, 1, 1, 0]) == 1.5


@pytest.mark.parametrize(
    ("entropies", "mask", "message"),
    [
        ([], None, r"entropies has shape \(0,\)"),
        ([[1.0]], None, r"entropies has shape \(1, 1\)"),
        ([1.0, 2.0], [True], r"mask has shape \(1,\)"),
        ([1.0, 2.0], [False, False], "mask excludes every token"),
    ],
)
def test_mean_entropy_refuses_what_has_no_mean(entropies, mask, message):
    with pytest.raises(ValueError, match=message):
        mean_entropy(entropies, mask)


def test_perplexity_of_a_uniform_choice_is_the_number_of_choices():
    assert perplexity([math.log(1 / 5)] * 3) == pytest.approx(5.0, rel=1e-12)
    assert perplexity([0.0]) == 1.0
    assert perplexity([math.log(1 / 2), math.log(1 / 8)]) == pytest.approx(
        4.0, rel=1e-12
    )  # geometric mean
    with pytest.raises(ValueError, match="log_probs has shape"):
        perplexity([])


@pytest.mark.parametrize("metric", ["ent", "ppl"])
@pytest.mark.parametrize(
    ("mode", "scores", "index"),
    [
        ("argmin", [3.0, 1.0, 2.0], 1),
        ("argmax", [1.0, 3.0, 2.0], 1),
        ("argmin", [2.0, 1.0, 1.0], 1),
        ("argmax", [0.0, 1.0, 1.0], 1),
        ("argmin", [math.nan, 5.0, 4.0], 2),
        ("argmax", [math.nan, 5.0, 4.0], 1),
        ("argmin", [math.nan, math.inf], 1),
        ("argmax", [math.nan, -math.inf], 1),
        ("argmin", [7.0], 0),
    ],
)
def test_the_extreme_score_wins(metric, mode, scores, index):
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    selector = TrajectorySelector(metric, mode)
    assert selector.needs_scores
    assert selector.choose(scores, rng) == index
    assert rng.bit_generator.state == before


def test_random_ignores_the_scores_and_is_uniform():
    selector = TrajectorySelector("random", "argmin")
    assert not selector.needs_scores
    rng = np.random.default_rng(0)
    draws = 4000
    counts = np.bincount([selector.choose([math.nan] * 4, rng) for _ in range(draws)], minlength=4)
    assert counts.sum() == draws
    assert np.abs(counts - draws / 4).max() < 4 * math.sqrt(
        draws * 3 / 16
    )  # 4 standard errors of a binomial


@pytest.mark.parametrize(
    ("metric", "scores", "message"),
    [
        ("ent", [math.nan, math.nan], "scores of 2 candidates are all NaN"),
        ("ent", [], r"scores has shape \(0,\)"),
        ("random", [], r"scores has shape \(0,\)"),
        ("ent", [[1.0]], r"scores has shape \(1, 1\)"),
    ],
)
def test_no_choice_without_a_score(metric, scores, message):
    with pytest.raises(ValueError, match=message):
        TrajectorySelector(metric, "argmin").choose(scores, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("metric", "mode", "message"),
    [("entropy", "argmin", "metric=entropy"), ("ent", "min", "mode=min")],
)
def test_unknown_metric_and_mode(metric, mode, message):
    with pytest.raises(ValueError, match=message):
        TrajectorySelector(metric, mode)


def test_effective_sample_size_by_hand():
    assert effective_sample_size([0.0, 0.0, 0.0]) == pytest.approx(1)
    assert effective_sample_size([5.0, 5.0]) == pytest.approx(
        1
    )  # what all have in common plays no part
    assert effective_sample_size(np.log([1.0, 3.0])) == pytest.approx(16 / 20)
    assert effective_sample_size([900.0, 0.0, 0.0, 0.0]) == pytest.approx(
        1 / 4
    )  # exp(900) is infinite
    with pytest.raises(ValueError, match="log_ratios has shape"):
        effective_sample_size([])
