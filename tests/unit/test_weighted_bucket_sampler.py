"""Bucket probabilities against closed forms and the measured counts of the released sampler; draws
as sets.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from exgrpo.experience.weighted_bucket_sampler import WeightedBucketSampler, bucket_weights

GOLDEN = Path(__file__).parents[1] / "golden" / "sampler_reference_cases.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
METHODS = ("normal", "linear", "sqrt", "linear_clip", False)


def name(case):
    return f"{case['method']}-{len(case['bucket_sizes'])}-{case['num_samples']}"


def questions(**sizes):
    return {
        int(bucket[1:]): [f"{bucket}.{i}" for i in range(size)] for bucket, size in sizes.items()
    }


@pytest.mark.parametrize("case", CASES, ids=name)
def test_probabilities_of_the_released_sampler(case):
    buckets = [int(bucket) for bucket in case["bucket_sizes"]]
    weights = bucket_weights(case["method"], buckets, case["rollouts_per_question"])
    np.testing.assert_allclose(weights, list(case["probabilities"].values()), rtol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_counts_of_the_released_sampler(case):
    sampler = WeightedBucketSampler(case["method"], case["rollouts_per_question"])
    room = {int(bucket): size for bucket, size in case["bucket_sizes"].items()}
    rng, repetitions = np.random.default_rng(20251002), 3000
    counts = np.array(
        [list(sampler.allot(room, case["num_samples"], rng).values()) for _ in range(repetitions)]
    )
    assert (counts.sum(axis=1) == case["num_samples"]).all()
    assert (counts <= list(room.values())).all()
    ours, theirs = counts.mean(axis=0), np.array(list(case["mean_count"].values()))
    error = np.hypot(
        counts.std(axis=0, ddof=1) / math.sqrt(repetitions), list(case["standard_error"].values())
    )
    assert (np.abs(ours - theirs) <= 4 * error).all(), (ours, theirs, error)


def test_normal_weights_by_hand():
    # K = 8, sigma 1: exp(-d^2 / 2) for d = -3..3 over its sum, as printed in the paper's code
    expected = [0.00443305, 0.05400558, 0.24203623, 0.39905028, 0.24203623, 0.05400558, 0.00443305]
    np.testing.assert_allclose(bucket_weights("normal", range(1, 8), 8), expected, atol=5e-9)
    # mean 0.25 of K is bucket 2; sigma 2: buckets 2 and 4 differ by a factor exp(-1/2)
    weights = bucket_weights("normal", [2, 4], 8, mean=0.25, sigma=2.0)
    assert weights[1] / weights[0] == pytest.approx(math.exp(-0.5), rel=1e-12)


def test_weights_do_not_underflow_when_only_far_buckets_are_left():
    weights = bucket_weights("normal", [1, 2], 64, sigma=0.01)
    assert weights.tolist() == [0.0, 1.0]
    counts = WeightedBucketSampler("normal", 64, sigma=0.01).allot(
        {1: 100, 2: 4, 32: 4}, 10, np.random.default_rng(0)
    )
    assert counts == {1: 2, 2: 4, 32: 4}


@pytest.mark.parametrize(
    ("method", "buckets", "message"),
    [
        ("normal", [], "buckets="),
        ("normal", [0, 1], r"buckets=\[0, 1\]"),
        ("linear", [9], r"buckets=\[9\]"),
        ("gauss", [1], "method=gauss"),
        (False, [1], "method=False"),
    ],
)
def test_bad_arguments_are_named(method, buckets, message):
    with pytest.raises(ValueError, match=message):
        bucket_weights(method, buckets, 8)


def test_an_unknown_method_is_refused_at_construction():
    with pytest.raises(ValueError, match="method=gauss"):
        WeightedBucketSampler("gauss", 8)


@pytest.mark.parametrize("method", METHODS)
def test_draws_are_distinct_and_complete_when_all_are_wanted(method):
    buckets = questions(b1=3, b4=0, b5=2, b7=6)
    everything = sorted(itertools.chain(*buckets.values()))
    sampler, rng = WeightedBucketSampler(method, 8), np.random.default_rng(0)
    for count in range(14):
        drawn = sampler.sample(buckets, count, rng)
        assert len(set(drawn)) == len(drawn) == min(count, 11)
        assert set(drawn) <= set(everything)
    assert sorted(drawn) == everything


@pytest.mark.parametrize("method", METHODS)
def test_excluded_positions_are_never_drawn_and_the_rest_is(method):
    buckets, excluded = questions(b3=5, b4=4), {3: [4, 0], 4: [0, 1, 2, 3], 6: [2]}
    sampler, rng = WeightedBucketSampler(method, 8), np.random.default_rng(0)
    assert sorted(sampler.sample(buckets, 99, rng, excluded)) == ["b3.1", "b3.2", "b3.3"]
    seen = {question for _ in range(60) for question in sampler.sample(buckets, 1, rng, excluded)}
    assert seen == {"b3.1", "b3.2", "b3.3"}


@pytest.mark.parametrize("excluded", list(itertools.combinations(range(6), 2)))
def test_inside_a_bucket_the_draw_is_uniform_over_what_is_not_excluded(excluded):
    buckets, repetitions = questions(b4=6), 600
    sampler, rng = WeightedBucketSampler("normal", 8), np.random.default_rng(sum(excluded))
    drawn = [
        q for _ in range(repetitions) for q in sampler.sample(buckets, 2, rng, {4: list(excluded)})
    ]
    counts = np.array([drawn.count(question) for question in buckets[4]])
    assert counts[list(excluded)].sum() == 0
    left = np.delete(counts, excluded)
    assert np.abs(left - repetitions / 2).max() < 4 * math.sqrt(repetitions / 4)


def test_without_a_bucket_manager_every_question_is_equally_likely():
    buckets, repetitions = questions(b1=12, b4=3, b7=1), 2000
    sampler, rng = WeightedBucketSampler(False, 8), np.random.default_rng(0)
    drawn = [question for _ in range(repetitions) for question in sampler.sample(buckets, 4, rng)]
    counts = np.array([drawn.count(question) for question in itertools.chain(*buckets.values())])
    assert np.abs(counts - repetitions / 4).max() < 4 * math.sqrt(repetitions * 3 / 16)


def test_the_order_of_a_draw_says_nothing_about_the_bucket():
    buckets = questions(b3=5, b5=5)
    sampler, rng = WeightedBucketSampler("normal", 8), np.random.default_rng(0)
    first = [sampler.sample(buckets, 10, rng)[0].startswith("b3") for _ in range(400)]
    assert abs(sum(first) - 200) < 4 * math.sqrt(100)


def test_a_draw_is_a_function_of_the_generator_and_the_buckets():
    buckets = questions(b2=50, b4=50, b6=50)
    sampler = WeightedBucketSampler("normal", 8)
    draws = [
        sampler.sample(buckets, 20, np.random.default_rng(seed), {4: [3, 7]}) for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_a_large_bucket_is_indexed_not_scanned():
    class Indexed(list):
        def __iter__(self):
            raise AssertionError("the bucket was scanned")

    buckets = {4: Indexed(map(str, range(100_000)))}
    assert (
        len(
            WeightedBucketSampler("normal", 8).sample(
                buckets, 64, np.random.default_rng(0), {4: [1, 5]}
            )
        )
        == 64
    )


@pytest.fixture
def rule(tmp_path):
    """Writes a rule that returns an expression of k, the counts; its reference."""

    def write(log_weights):
        lines = [
            "import numpy as np",
            "def rule(successes, rollout_n, mean, sigma):",
            "    k = successes",
        ]
        (tmp_path / "rules.py").write_text("\n".join([*lines, f"    return {log_weights}"]))
        return f"{tmp_path}/rules.py:rule"

    return write


def test_a_bucket_that_the_rule_forbids_is_never_drawn(rule):
    sampler = WeightedBucketSampler(
        rule("np.where(abs(k - 4) <= 1, 0, -np.inf)"), 8
    )  # 8 is forbidden too
    rng = np.random.default_rng(0)
    assert sampler.probabilities({2: 9, 4: 1, 5: 7}) == {2: 0, 4: 0.5, 5: 0.5}
    assert sampler.probabilities({1: 9, 7: 2}) == {1: 0, 7: 0}
    assert sampler.allot({1: 9, 7: 2}, 4, rng) == {1: 0, 7: 0}  # only forbidden buckets have room
    assert sampler.allot({2: 9, 3: 1, 4: 2, 6: 9}, 8, rng) == {
        2: 0,
        3: 1,
        4: 2,
        6: 0,
    }  # the allowed ones are full
    buckets = questions(b1=9, b3=4, b4=4, b5=4, b7=9)
    for count in range(20):
        drawn = sampler.sample(buckets, count, rng)
        assert len(set(drawn)) == min(count, 12) and {question[:2] for question in drawn} <= {
            "b3",
            "b4",
            "b5",
        }


@pytest.mark.parametrize(
    ("log_weights", "message"),
    [
        (
            "np.full(len(k), -np.inf)",
            r"^method=.*rules.py:rule: gives -inf for all counts 1 to 40: must allow one or more$",
        ),
        ("np.where(k == 2, np.nan, 0)", "must be a log-weight for each"),
        ("np.where(k == 2, np.inf, 0)", "must be a log-weight for each"),
        ("k[:1]", "must be a log-weight for each"),
    ],
)
def test_a_rule_that_is_wrong_for_some_count_is_refused_at_construction(rule, log_weights, message):
    with pytest.raises(ValueError, match=message) as error:
        WeightedBucketSampler(rule(log_weights), 40)
    assert "\n" not in str(error.value)
