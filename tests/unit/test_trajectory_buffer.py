"""What goes into a buffer and what comes out: texts, windows, draws against the sampler's weights, bad input."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from exgrpo.experience.weighted_bucket_sampler import bucket_weights
from exgrpo.replay import DifficultyBucketer, TrajectoryBuffer
from exgrpo.replay.strategies import STRATEGIES

GRADING = Path(__file__).parents[3] / "shared" / "data" / "grading" / "gsm8k_model_solutions.jsonl"
ALL = {"difficulty_range": None, "entropy_percentile": None}


def right(prompt="q", rollout="r", entropy=0.5, **more):
    return {"prompt": prompt, "rollout": rollout, "reward": 1.0, "is_correct": True, "entropy": entropy, **more}


def wrong(prompt="q"):
    return right(prompt) | {"reward": 0.0, "is_correct": False}


def level_of(trajectory):
    return trajectory["level"]


def leveled(levels, **settings):
    """A buffer of one trajectory a question, at the given levels of difficulty."""
    buffer = TrajectoryBuffer(bucketer=DifficultyBucketer(level_of), **settings)
    for number, level in enumerate(levels):
        buffer.add(right(f"q{number}", level=level))
    return buffer


def test_texts_and_rewards_come_out_as_they_went_in(tmp_path):
    rows = [
        right("1 +  1?\n", "so \\boxed{2}\r\n", reward=0.75),
        right("naïve 答案", "\U0001f600 é \x00 \ud800"),  # a lone surrogate is no UTF-8
        right("with tokens", "", tokens=[5, 6], log_probs=np.array([-0.25, 0.0], np.float32)),
        right("with tokens alone", "\ud800", tokens=np.array([7], np.uint8), entropy=None, reward=0.25),
    ]
    buffer = TrajectoryBuffer()
    assert all(buffer.add(row) for row in rows) and len(buffer) == 4
    buffer.save(tmp_path / "buffer")
    for each in (buffer, TrajectoryBuffer.load(tmp_path / "buffer")):
        batch = each.sample("uniform_random", 10)
        found = {batch.prompts[i]: i for i in range(len(batch))}
        assert len(found) == 4
        for row in rows:
            i = found[row["prompt"]]
            assert (batch.rollouts[i], batch.rewards[i]) == (row["rollout"], row["reward"])
            for key, values in (("tokens", batch.tokens), ("log_probs", batch.log_probs)):
                assert (None if values[i] is None else values[i].tolist()) == (list(row[key]) if key in row else None)
        assert np.isnan(batch.entropies[found["with tokens alone"]])
        assert batch.levels.tolist() == [1] * 4 and batch.ages.tolist() == [0] * 4


def test_a_failure_counts_for_difficulty_and_is_not_kept():
    buffer = TrajectoryBuffer()
    assert not buffer.add(wrong()) and len(buffer) == 0
    assert buffer.add(right())
    assert len(buffer) == 1 and buffer.sample(size=1).levels.tolist() == [0.5]
    for _ in range(2):
        assert not buffer.add(wrong())
    assert len(buffer) == 1 and buffer.eligible() == 0 and buffer.eligible("uniform_low_entropy") == 1
    assert buffer.sample(**ALL).levels.tolist() == [0.25]


def test_a_failure_may_have_any_finite_reward():
    buffer = TrajectoryBuffer()
    assert not buffer.add(wrong() | {"reward": -3}) and buffer.add(right())
    assert buffer.sample(**ALL).levels.tolist() == [0.5]


def test_texts_and_tokens_are_different_responses():
    buffer = TrajectoryBuffer()
    for row in (
        right(rollout="a"),
        right(rollout="a", tokens=[97]),
        right(rollout="b", tokens=[97]),
        right(rollout="a"),
    ):
        buffer.add(row)
    assert len(buffer) == 2
    rows = {buffer.sample("uniform_random").rollouts[0] for _ in range(50)}
    assert rows == {"a", "b"}


def test_a_loss_mask_comes_back_and_scores_mind_it(tmp_path):
    buffer = TrajectoryBuffer()
    mask = [False, True, False]
    buffer.add(right(rollout="masked", entropy=0.9, tokens=[1, 2, 3], log_probs=[-1.0, -2.0, -3.0], loss_mask=mask))
    buffer.add(right(rollout="whole", entropy=0.1, tokens=[4, 5], loss_mask=[1, 1]))
    buffer.add(right(rollout="text alone", entropy=0.5))
    buffer.save(tmp_path / "b")
    for each in (buffer, TrajectoryBuffer.load(tmp_path / "b")):
        low, high = (each.sample(f"uniform_{way}_entropy", entropy_percentile=None) for way in ("low", "high"))
        assert (low.rollouts, low.loss_masks) == (["whole"], [None])
        assert (high.rollouts, high.loss_masks[0].tolist()) == (["masked"], mask)
        turned = each.sample("uniform_low_entropy", 1, None, None, scores=lambda batch: -batch.entropies)
        assert turned.rollouts == ["masked"] and turned["loss_masks"][0].tolist() == mask


def test_a_batch_is_read_by_name_too_and_its_rows_can_be_added():
    buffer, other = TrajectoryBuffer(), TrajectoryBuffer()
    buffer.add(
        right("p", "r \ud800", None, tokens=[1, 2], log_probs=[-1.0, -2.0], loss_mask=[0, 1], step=3, reward=0.5)
    )
    batch = buffer.sample("uniform_random")
    assert (batch["prompts"], batch["rollouts"], batch["rewards"].tolist()) == (["p"], ["r \ud800"], [0.5])
    fields = dict(batch)
    assert all(value is getattr(batch, name) for name, value in fields.items()) and fields["steps"].tolist() == [3]
    with pytest.raises(KeyError, match="no field 'prompt' in a ReplayBatch: must be one of prompts, rollouts, rewards"):
        batch["prompt"]
    assert other.add(batch.rows()[0])
    assert repr(dict(other.sample("uniform_random"))) == repr(fields)


def test_a_question_that_is_always_solved_stays():
    buffer = TrajectoryBuffer(difficulty_tiers=3)
    for number in range(20):
        buffer.add(right(rollout=str(number)))
    assert len(buffer) == 8 and buffer.sample(**ALL).levels.tolist() == [1]


def test_a_range_includes_its_ends():
    levels = [0.0, 0.29, 0.3, 0.5, 0.7, 0.71, 1.0]
    buffer = leveled(levels)
    expected_of = {"as named": [0.3, 0.5, 0.7], (0.0, 0.29): [0.0, 0.29], (1, 1): [1.0], None: levels}
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
    assert (np.abs(counts - draws * expected) < 4 * np.sqrt(draws * expected * (1 - expected))).all(), counts


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


def entropic(entropies, **settings):
    """Questions solved half of the time, each with trajectories of the given entropies."""
    buffer = TrajectoryBuffer(**settings)
    for prompt, values in entropies.items():
        for value in values:
            buffer.add(right(prompt, f"{value}", value))
            buffer.add(wrong(prompt))
    return buffer


def test_the_lowest_entropy_within_the_percentile():
    buffer = entropic({"a": [0.4, 0.1, 0.2], "b": [0.3, 0.5], "c": [0.9]})
    assert buffer.entropy_thresholds() == {p: np.percentile([0.1, 0.2, 0.3, 0.4, 0.5, 0.9], p) for p in (25, 50, 75)}
    found = {p: sorted(buffer.sample(size=9, entropy_percentile=p).entropies) for p in (25, 50, 75, None)}
    assert found == {25: [0.1], 50: [0.1, 0.3], 75: [0.1, 0.3], None: [0.1, 0.3, 0.9]}
    assert sorted(buffer.sample("uniform_high_entropy", 9).entropies) == [0.4, 0.5, 0.9]
    assert sorted(buffer.sample("uniform_high_entropy", 9, entropy_percentile=50).entropies) == [0.2, 0.3]
    many = [buffer.sample("uniform_random", 9, entropy_percentile=75).entropies for _ in range(200)]
    assert {value for values in many for value in values} == {0.1, 0.2, 0.3, 0.4}


def test_unknown_entropies_are_candidates_only_where_none_is_needed():
    buffer = entropic({"a": [None, 0.6], "b": [None]})
    assert buffer.sample(size=9, entropy_percentile=None).rollouts == ["0.6"]
    assert buffer.eligible("uniform_low_entropy", entropy_percentile=None) == 1
    assert buffer.eligible("uniform_random") == 2 and buffer.entropy_thresholds()[25] == 0.6
    drawn = buffer.sample("uniform_low_entropy", 9, entropy_percentile=None, scores=lambda batch: [0.0, 1.0])
    assert sorted(drawn.rollouts) == ["None", "None"]
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
    assert sorted(buffer.sample("uniform_high_entropy", 9, scores=scores).entropies) == [0.1, 0.5, 0.6]
    buffer.sample("uniform_random", 9, scores=scores)
    assert len(seen) == 2
    with pytest.raises(ValueError, match=r"scores has shape \(2,\): must be \(5,\), one a candidate"):
        buffer.sample("uniform_low_entropy", 9, entropy_percentile=None, scores=lambda batch: [1, 2])
    with pytest.raises(ValueError, match=r"scores of . candidates are all NaN"):
        buffer.sample("uniform_low_entropy", 9, entropy_percentile=None, scores=lambda rows: rows.entropies * math.nan)


def test_the_bounds_hold_and_what_leaves_takes_its_text_along():
    buffer = TrajectoryBuffer(max_size=5, max_per_question=2)
    for number in range(400):
        buffer.add(right(f"q{number % 100}", f"text {number}", number % 7 / 7))
        assert len(buffer) <= 5 and buffer.pool.metrics()["pool_bytes"] < 5 * 300
    batch = buffer.sample(size=9, **ALL)
    assert sorted(batch.rollouts) == [f"text {number}" for number in range(395, 400)]
    buffer.pool.check_invariants()


def test_of_one_question_the_highest_entropy_goes_and_the_same_tokens_are_kept_once():
    buffer = TrajectoryBuffer(max_per_question=2)
    kept = [buffer.add(right(rollout=text, entropy=entropy)) for text, entropy in (("a", 0.2), ("b", 0.9), ("c", 0.4))]
    assert kept == [True, True, True] and not buffer.add(right(rollout="d", entropy=0.5))
    assert buffer.add(right(rollout="a", entropy=0.3, reward=0.5)) and len(buffer) == 2
    batch = buffer.sample(**ALL)
    assert (batch.rollouts, batch.rewards.tolist(), batch.entropies.tolist()) == (["a"], [0.5], [0.3])


def test_ages_count_from_the_policy_that_wrote():
    buffer = TrajectoryBuffer(max_age=3)
    buffer.add(right("old", step=2))
    assert buffer.policy_snapshot == 2
    buffer.policy_snapshot = 4
    buffer.add(right("new"))
    ages = dict(zip(*(lambda batch: (batch.prompts, batch.ages.tolist()))(buffer.sample(**ALL)), strict=True))
    assert ages == {"old": 2, "new": 0}
    buffer.policy_snapshot = 5
    assert len(buffer) == 2
    buffer.policy_snapshot = 6
    assert buffer.sample(**ALL).prompts == ["new"]
    assert not buffer.add(right("late", step=2)) and buffer.add(right("in time", step=3))
    assert len(buffer) == 2
    for back in (5, 2.0, True, None):
        with pytest.raises(ValueError, match=f"policy_snapshot={back}: must be an integer of at least 6"):
            buffer.policy_snapshot = back


def test_clear_forgets_all_but_the_generator():
    buffer = leveled([0.5] * 9)
    buffer.policy_snapshot = 3
    before = buffer.rng.bit_generator.state
    buffer.clear()
    assert len(buffer) == buffer.eligible() == 0 and buffer.policy_snapshot == 3
    assert buffer.rng.bit_generator.state == before
    buffer.add(right("q1", level=0.1))
    assert buffer.sample(**ALL).levels.tolist() == [0.1]


def test_equal_seeds_draw_alike():
    draws = [leveled(np.linspace(0, 1, 50), seed=seed).sample(size=6, **ALL).prompts for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert leveled(np.linspace(0, 1, 50), seed=np.random.default_rng(1)).sample(size=6, **ALL).prompts == draws[0]


@pytest.mark.skipif(not GRADING.exists(), reason="no grading data beside the checkout")
def test_real_solutions_come_back_word_for_word():
    rows = [json.loads(line) for line in GRADING.read_text(encoding="utf-8").splitlines()]
    buffer, rates = TrajectoryBuffer(max_per_question=2), {}
    for number, row in enumerate(rows):
        prompt, text, correct = row["question"], row["pred"], row["expected"]
        buffer.add(right(prompt, text, number % 13 / 13) | {"is_correct": correct})
        rates.setdefault(prompt, {}).setdefault(correct, []).append(text)
    batch = buffer.sample(size=200, entropy_percentile=None)
    assert len(batch) > 20
    for prompt, text, level in zip(batch.prompts, batch.rollouts, batch.levels, strict=True):
        solved, failed = (len(rates[prompt].get(correct, [])) for correct in (True, False))
        assert text in rates[prompt][True] and level == solved / (solved + failed) and 0.3 <= level <= 0.7


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "q"}, "trajectory without 'rollout': must have prompt, rollout, reward, is_correct, entropy"),
        (right(prompt=""), "prompt='': must be a non-empty string"),
        (right(prompt=[{"role": "user"}]), "prompt=.*: must be a non-empty string; render a chat's messages first"),
        (right(prompt="\ud800"), r"prompt='\\ud800': must be valid Unicode"),
        (right(rollout=""), "rollout='': must be a string, and not empty"),
        (right(rollout=None), "rollout=None: must be a string"),
        (right(entropy=math.nan), "entropy=nan: must be a mean token entropy in nats, 0 or more, or None"),
        (right(entropy=-1), "entropy=-1: must be"),
        (right(entropy=math.inf), "entropy=inf: must be"),
        (right(entropy="low"), "entropy=low: must be"),
        (right() | {"reward": math.nan}, "reward=nan: must be a finite number"),
        (right() | {"reward": None}, "reward=None: must be a finite number"),
        (right() | {"reward": 2}, "reward=2: must be a finite number, and between 0 and 1 where it is correct"),
        (wrong() | {"reward": math.inf}, "reward=inf: must be a finite number"),
        (right() | {"is_correct": 0.5}, "is_correct=0.5: must be True or False"),
        (right(tokens=[1, 2], log_probs=[-1.0]), "log_probs has 1 entries for 2 tokens: must be as many"),
        (right(tokens=[]), "tokens has shape"),
        (right(tokens=[1], log_probs=[math.nan]), r"log_probs\[0\]=nan: must be finite"),
        (right(loss_mask=[True]), r"loss_mask has shape \(1,\) for 0 tokens"),
        (right(log_probs=[-1.0]), "log_probs has 1 entries without tokens"),
        (right(logprobs=[-1.0]), "logprobs: no such key; did you mean log_probs?"),
        (right(step=-1), "step=-1: must be an integer of at least 0"),
    ],
)
def test_a_bad_trajectory_changes_nothing(row, message):
    buffer = TrajectoryBuffer()
    with pytest.raises(ValueError, match=message):
        buffer.add(row)
    assert len(buffer) == len(buffer.bucketer) == buffer.policy_snapshot == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size=0: must be an integer of at least 1"),
        ({"size": 2.5}, "size=2.5: must be"),
        ({"strategy": "low"}, "strategy='low': must be one of medium_difficulty_low_entropy, "),
        (
            {"difficulty_range": (0.7, 0.3)},
            r"difficulty_range=\(0.7, 0.3\): must be \(low, high\) with 0 <= low <= high",
        ),
        ({"difficulty_range": (0, 30)}, r"difficulty_range=\(0, 30\): must be"),
        ({"difficulty_range": (0, math.nan)}, r"difficulty_range=\(0.0, nan\): must be"),
        ({"difficulty_range": 0.5}, r"difficulty_range=0.5: must be two numbers, \(low, high\)"),
        ({"difficulty_range": (1,)}, r"difficulty_range=\(1,\): must be two numbers"),
        ({"entropy_percentile": 30}, "entropy_percentile=30: must be None or one of 25, 50, 75"),
        ({"difficulty_range": (0.9, 1)}, "with difficulty_range=.0.9, 1.0., entropy_percentile=25.0: none of 1 traj"),
    ],
)
def test_a_bad_sample_leaves_the_generator(arguments, message):
    buffer = leveled([0.5])
    before = buffer.rng.bit_generator.state
    with pytest.raises(ValueError, match=message):
        buffer.sample(**arguments)
    assert buffer.rng.bit_generator.state == before


def test_an_empty_buffer_says_so():
    with pytest.raises(ValueError, match="none of 0 trajectories is left to draw"):
        TrajectoryBuffer().sample()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_size": 0}, "max_size=0: must be an integer of at least 1"),
        ({"difficulty_tiers": 0}, "difficulty_tiers=0: must be an integer of at least 1"),
        ({"max_per_question": None}, "max_per_question=None: must be"),
        ({"max_age": 0}, "max_age=0: must be an integer of at least 1, or None"),
        ({"entropy_percentiles": [25, 101]}, "entropy_percentiles holds 101.0: must be between 0 and 100"),
        ({"seed": np.random.Generator(np.random.MT19937(0))}, "seed=.*: must be an integer or a generator over PCG64"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TrajectoryBuffer(**settings)


def test_the_lowest_percentile_there_is_stands_for_low_entropy():
    buffer = entropic({"a": [0.1], "b": [0.2], "c": [0.3]}, entropy_percentiles=(60, 90))
    assert sorted(buffer.sample(size=9).prompts) == ["a", "b"]
    assert sorted(entropic({"a": [0.1], "b": [0.2]}, entropy_percentiles=()).sample(size=9).prompts) == ["a", "b"]
