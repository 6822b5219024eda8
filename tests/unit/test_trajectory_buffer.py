"""What goes into a buffer and comes out: texts, masks, windows, bounds, ages, and which
trajectories are kept.
"""

import json
from pathlib import Path

import invariants
import numpy as np
import pytest
from buffer_rows import ALL, leveled, right, wrong

from exgrpo.buffer import TrajectoryBuffer

GRADING = Path(__file__).parents[3] / "shared" / "data" / "grading" / "gsm8k_model_solutions.jsonl"


def test_texts_and_rewards_come_out_as_they_went_in(tmp_path):
    rows = [
        right("1 +  1?\n", "so \\boxed{2}\r\n", reward=0.75),
        right("naïve 答案", "\U0001f600 é \x00 \ud800"),  # a lone surrogate is no UTF-8
        right("with tokens", "", tokens=[5, 6], log_probs=np.array([-0.25, 0.0], np.float32)),
        right(
            "with tokens alone", "\ud800", tokens=np.array([7], np.uint8), entropy=None, reward=0.25
        ),
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
            assert (batch.texts[i], batch.rewards[i]) == (row["rollout"], row["reward"])
            for key, values in (("tokens", batch.tokens), ("log_probs", batch.log_probs)):
                assert (None if values[i] is None else values[i].tolist()) == (
                    list(row[key]) if key in row else None
                )
        assert np.isnan(batch.entropies[found["with tokens alone"]])
        assert batch.levels.tolist() == [1] * 4 and batch.ages.tolist() == [0] * 4


def test_a_failure_counts_for_difficulty_and_is_not_kept():
    buffer = TrajectoryBuffer()
    assert not buffer.add(wrong()) and len(buffer) == 0
    assert buffer.add(right())
    assert len(buffer) == 1 and buffer.sample(size=1).levels.tolist() == [0.5]
    for _ in range(2):
        assert not buffer.add(wrong())
    assert (
        len(buffer) == 1 and buffer.eligible() == 0 and buffer.eligible("uniform_low_entropy") == 1
    )
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
    rows = {buffer.sample("uniform_random").texts[0] for _ in range(50)}
    assert rows == {"a", "b"}


def test_a_loss_mask_comes_back_and_scores_mind_it(tmp_path):
    buffer = TrajectoryBuffer()
    mask = [False, True, False]
    buffer.add(
        right(
            rollout="masked",
            entropy=0.9,
            tokens=[1, 2, 3],
            log_probs=[-1.0, -2.0, -3.0],
            loss_mask=mask,
        )
    )
    buffer.add(right(rollout="whole", entropy=0.1, tokens=[4, 5], loss_mask=[1, 1]))
    buffer.add(right(rollout="text alone", entropy=0.5))
    buffer.save(tmp_path / "b")
    for each in (buffer, TrajectoryBuffer.load(tmp_path / "b")):
        low, high = (
            each.sample(f"uniform_{way}_entropy", entropy_percentile=None)
            for way in ("low", "high")
        )
        assert (low.texts, low.loss_masks) == (["whole"], [None])
        assert (high.texts, high.loss_masks[0].tolist()) == (["masked"], mask)
        turned = each.sample(
            "uniform_low_entropy", 1, None, None, scores=lambda batch: -batch.entropies
        )
        assert turned.texts == ["masked"] and turned["loss_masks"][0].tolist() == mask


def test_a_batch_is_read_by_name_too_and_its_rows_can_be_added():
    buffer, other = TrajectoryBuffer(), TrajectoryBuffer()
    buffer.add(
        right(
            "p",
            "r \ud800",
            None,
            tokens=[1, 2],
            log_probs=[-1.0, -2.0],
            loss_mask=[0, 1],
            step=3,
            reward=0.5,
        )
    )
    batch = buffer.sample("uniform_random")
    assert (batch["prompts"], batch["texts"], batch["rewards"].tolist()) == (
        ["p"],
        ["r \ud800"],
        [0.5],
    )
    fields = dict(batch)
    assert all(value is getattr(batch, name) for name, value in fields.items()) and fields[
        "steps"
    ].tolist() == [3]
    with pytest.raises(
        KeyError,
        match="no field 'prompt' in a ReplayBatch: must be one of prompts, rollouts, rewards",
    ):
        batch["prompt"]
    ((row, prompt, reward),) = zip(
        batch["rollouts"], batch["prompts"], batch["rewards"], strict=True
    )
    five = {
        "prompt": prompt,
        "rollout": row,
        "reward": reward,
        "is_correct": reward > 0,
        "entropy": row["entropy"],
    }
    assert other.add(five) and other.bucketer.windows() == {"p": [1.0]}
    assert repr(dict(other.sample("uniform_random"))) == repr(fields)


def test_a_question_that_is_always_solved_stays():
    buffer = TrajectoryBuffer(difficulty_tiers=3)
    for number in range(20):
        buffer.add(right(rollout=str(number)))
    assert len(buffer) == 8 and buffer.sample(**ALL).levels.tolist() == [1]


def test_the_bounds_hold_and_what_leaves_takes_its_text_along():
    buffer = TrajectoryBuffer(max_size=5, max_per_question=2)
    for number in range(400):
        buffer.add(right(f"q{number % 100}", f"text {number}", number % 7 / 7))
        assert len(buffer) <= 5 and buffer.pool.metrics()["pool_bytes"] < 5 * 300
    batch = buffer.sample(size=9, **ALL)
    assert sorted(batch.texts) == [f"text {number}" for number in range(395, 400)]
    invariants.check(buffer.pool)


def test_of_one_question_the_highest_entropy_goes_and_the_same_tokens_are_kept_once():
    buffer = TrajectoryBuffer(max_per_question=2)
    kept = [
        buffer.add(right(rollout=text, entropy=entropy))
        for text, entropy in (("a", 0.2), ("b", 0.9), ("c", 0.4))
    ]
    assert kept == [True, True, True] and not buffer.add(right(rollout="d", entropy=0.5))
    assert buffer.add(right(rollout="a", entropy=0.3, reward=0.5)) and len(buffer) == 2
    batch = buffer.sample(**ALL)
    assert (batch.texts, batch.rewards.tolist(), batch.entropies.tolist()) == (["a"], [0.5], [0.3])


def test_ages_count_from_the_policy_that_wrote():
    buffer = TrajectoryBuffer(max_age=3)
    buffer.add(right("old", step=2))
    assert buffer.policy_snapshot == 2
    buffer.policy_snapshot = 4
    buffer.add(right("new"))
    ages = dict(
        zip(
            *(lambda batch: (batch.prompts, batch.ages.tolist()))(buffer.sample(**ALL)), strict=True
        )
    )
    assert ages == {"old": 2, "new": 0}
    buffer.policy_snapshot = 5
    assert len(buffer) == 2
    buffer.policy_snapshot = 6
    assert buffer.sample(**ALL).prompts == ["new"]
    assert not buffer.add(right("late", step=2)) and buffer.add(right("in time", step=3))
    assert len(buffer) == 2
    for back in (5, 2.0, True, None):
        with pytest.raises(
            ValueError, match=f"policy_snapshot={back}: must be an integer of at least 6"
        ):
            buffer.policy_snapshot = back


def test_the_too_old_leave_in_whatever_order_they_were_recorded():
    buffer = TrajectoryBuffer(max_age=5)
    for question, step in (("new", 10), ("new", 6), ("late", 6), ("late", 7), ("later", 9)):
        buffer.add(right(question, f"text of step {step}", step=step))
    buffer.policy_snapshot = 14
    assert sorted(buffer.sample(size=9, **ALL).ages.tolist()) == [4, 5]
    assert (
        "late" not in buffer.pool
        and len(buffer) == 2
        and buffer.pool.metrics()["evicted_by_age"] == 3
    )
    invariants.check(buffer.pool)


def test_clear_forgets_all_but_the_generator():
    buffer = leveled([0.5] * 9)
    buffer.policy_snapshot = 3
    before = buffer.rng.bit_generator.state
    buffer.clear()
    assert len(buffer) == buffer.eligible() == 0 and buffer.policy_snapshot == 3
    assert buffer.rng.bit_generator.state == before
    buffer.add(right("q1", level=0.1))
    assert buffer.sample(**ALL).levels.tolist() == [0.1]


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
    for prompt, text, level in zip(batch.prompts, batch.texts, batch.levels, strict=True):
        solved, failed = (len(rates[prompt].get(correct, [])) for correct in (True, False))
        assert (
            text in rates[prompt][True]
            and level == solved / (solved + failed)
            and 0.3 <= level <= 0.7
        )
