"""What a buffer draws: difficulty ranges, tiers with the sampler's weights, entropy percentiles,
given scores.
"""

import math

import numpy as np
import pytest
from buffer_rows import ALL, entropic, leveled

from exgrpo.buffer.strategies import STRATEGIES
from exgrpo.experience.weighted_bucket_sampler import bucket_weights


def test_a_range_includes_its_ends():
    levels = [0.0, 0.29, 0.3, 0.5, 0.7, 0.71, 1.0]
    buffer = leveled(levels)
    expected_of = {
        "as named": [0.3, 0.5, 0.7],
        (0.0, 0.29): [0.0, 0.29],
        (1, 1): [1.0],
        None: levels,
    }
    for bounds, expected in expected_of.items():
        assert sorted(buffer.sample(size=99, difficulty_range=bounds).levels) == expected
        assert buffer.eligible(difficulty_range=bounds) == len(expected)


def test_tiers_are_drawn_with_the_samplers_weights():
    sizes = {1: 4, 2: 1, 4: 7, 5: 2}
    buffer = leveled([(tier - 0.5) / 5 for tier, size in sizes.items() for _ in range(size)])
    draws = 4000
    tiers = [1 + int(buffer.sample(size=1, **ALL).levels[0] * 5) for _ in range(draws)]
    counts = np.array([tiers.count(tier) for tier in sizes])
    expected = bucket_weights("normal", list(sizes), 6)  # centred on tier 3 of 5
    assert (
        np.abs(counts - draws * expected) < 4 * np.sqrt(draws * expected * (1 - expected))
    ).all(), counts


@pytest.mark.parametrize("strategy", ["uniform_low_entropy", "uniform_random"])
def test_uniform_is_over_questions_not_tiers(strategy):
    buffer = leveled([0.1, 0.1, 0.1, 0.5, 0.9])
    draws = 2000
    drawn = [buffer.sample(strategy, 1).prompts[0] for _ in range(draws)]
    counts = np.array([drawn.count(f"q{number}") for number in range(5)])
    assert np.abs(counts - draws / 5).max() < 4 * math.sqrt(draws * 0.16), counts


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_draws_are_distinct_questions(strategy):
    buffer = leveled([0.3, 0.35, 0.4, 0.5, 0.55, 0.6, 0.7])
    for size in range(1, 9):
        prompts = buffer.sample(strategy, size).prompts
        assert len(set(prompts)) == len(prompts) == min(size, 7)


def test_the_lowest_entropy_within_the_percentile():
    buffer = entropic({"a": [0.4, 0.1, 0.2], "b": [0.3, 0.5], "c": [0.9]})
    assert buffer.entropy_thresholds() == {
        p: np.percentile([0.1, 0.2, 0.3, 0.4, 0.5, 0.9], p) for p in (25, 50, 75)
    }
    found = {
        p: sorted(buffer.sample(size=9, entropy_percentile=p).entropies) for p in (25, 50, 75, None)
    }
    assert found == {25: [0.1], 50: [0.1, 0.3], 75: [0.1, 0.3], None: [0.1, 0.3, 0.9]}
    assert sorted(buffer.sample("uniform_high_entropy", 9).entropies) == [0.4, 0.5, 0.9]
    assert sorted(buffer.sample("uniform_high_entropy", 9, entropy_percentile=50).entropies) == [
        0.2,
        0.3,
    ]
    many = [buffer.sample("uniform_random", 9, entropy_percentile=75).entropies for _ in range(200)]
    assert {value for values in many for value in values} == {0.1, 0.2, 0.3, 0.4}


def test_unknown_entropies_are_candidates_only_where_none_is_needed():
    buffer = entropic({"a": [None, 0.6], "b": [None]})
    assert buffer.sample(size=9, entropy_percentile=None).texts == ["0.6"]
    assert buffer.eligible("uniform_low_entropy", entropy_percentile=None) == 1
    assert buffer.eligible("uniform_random") == 2 and buffer.entropy_thresholds()[25] == 0.6
    drawn = buffer.sample(
        "uniform_low_entropy", 9, entropy_percentile=None, scores=lambda batch: [0.0, 1.0]
    )
    assert sorted(drawn.texts) == ["None", "None"]
    alone = entropic({"b": [None]})
    assert math.isnan(alone.entropy_thresholds()[50]) and alone.eligible(entropy_percentile=50) == 0
    with pytest.raises(ValueError, match="none of 1 trajectories is left to draw"):
        alone.sample(entropy_percentile=None)


def test_scores_of_now_decide_and_lone_candidates_are_not_scored():
    buffer = entropic({"a": [0.1, 0.2, 0.3], "b": [0.5], "c": [0.6, 0.7]})
    seen = []

    def scores(batch):
        seen.append(sorted(zip(batch.prompts, batch.entropies, strict=True)))
        return [-entropy for entropy in batch.entropies]

    drawn = buffer.sample("uniform_low_entropy", 9, entropy_percentile=None, scores=scores)
    assert sorted(drawn.entropies) == [0.3, 0.5, 0.7]
    assert seen == [[("a", 0.1), ("a", 0.2), ("a", 0.3), ("c", 0.6), ("c", 0.7)]]
    assert sorted(buffer.sample("uniform_high_entropy", 9, scores=scores).entropies) == [
        0.1,
        0.5,
        0.6,
    ]
    buffer.sample("uniform_random", 9, scores=scores)
    assert len(seen) == 2
    with pytest.raises(
        ValueError, match=r"scores has shape \(2,\): must be \(5,\), one per candidate"
    ):
        buffer.sample(
            "uniform_low_entropy", 9, entropy_percentile=None, scores=lambda batch: [1, 2]
        )
    with pytest.raises(ValueError, match=r"scores of . candidates are all NaN"):
        buffer.sample(
            "uniform_low_entropy",
            9,
            entropy_percentile=None,
            scores=lambda rows: rows.entropies * math.nan,
        )


def test_equal_seeds_draw_alike():
    draws = [
        leveled(np.linspace(0, 1, 50), seed=seed).sample(size=6, **ALL).prompts
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert (
        leveled(np.linspace(0, 1, 50), seed=np.random.default_rng(1)).sample(size=6, **ALL).prompts
        == draws[0]
    )


def test_the_lowest_percentile_there_is_stands_for_low_entropy():
    buffer = entropic({"a": [0.1], "b": [0.2], "c": [0.3]}, entropy_percentiles=(60, 90))
    assert sorted(buffer.sample(size=9).prompts) == ["a", "b"]
    assert sorted(
        entropic({"a": [0.1], "b": [0.2]}, entropy_percentiles=()).sample(size=9).prompts
    ) == ["a", "b"]
