"""The mixed batch: who is in it, how many rollouts each asks for, and that its order is the
generator's alone.
"""

import numpy as np
import pytest

from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn


def row(question):
    return {"question_id": question, "raw_prompt": [{"role": "user", "content": question}]}


def mix(fresh, replayed, seed=0, n=8, step=3):
    collate = ExperienceMixCollateFn(row, n)
    return collate(
        [row(question) for question in fresh], replayed, step, np.random.default_rng(seed)
    )


def test_a_replayed_question_asks_for_one_rollout_less():
    batch = mix("abcd", ["x", "y"])
    wanted = dict(zip(batch["question_id"], batch["__rollout_n__"], strict=True))
    assert wanted == {"a": 8, "b": 8, "c": 8, "d": 8, "x": 7, "y": 7}
    assert dict(zip(batch["question_id"], batch["is_replayed"], strict=True))["x"]


def test_the_order_is_shuffled_and_repeatable():
    first, again, other = (
        mix("abcdefgh", ["x"]),
        mix("abcdefgh", ["x"]),
        mix("abcdefgh", ["x"], seed=1),
    )
    assert list(first["question_id"]) == list(again["question_id"]) != list(other["question_id"])
    assert list(first["question_id"]) != list("abcdefgh") + ["x"]


def test_uids_name_step_and_position_and_hold_no_separator_of_keys():
    batch = mix("ab", ["x"], step=12)
    assert list(batch["uid"]) == ["0000012q00000", "0000012q00001", "0000012q00002"]


def test_a_second_batch_of_a_step_goes_on_counting():
    collate = ExperienceMixCollateFn(row, 8)
    second = collate([row("c")], [], 12, np.random.default_rng(0), first=3)
    assert list(second["uid"]) == ["0000012q00003"]


def test_rows_are_not_changed():
    given = [row("a")]
    ExperienceMixCollateFn(row, 2)(given, [], 1, np.random.default_rng(0))
    assert given == [row("a")]


@pytest.mark.parametrize(
    ("fresh", "replayed", "message"),
    [
        ("aba", [], "question 'a' stands in the batch twice"),
        ("ab", ["b"], "question 'b'"),
        ("", [], "no questions"),
    ],
)
def test_a_wrong_batch_is_refused(fresh, replayed, message):
    with pytest.raises(ValueError, match=message):
        mix(fresh, replayed)


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match="rollout_n=1"):
        ExperienceMixCollateFn(row, 1)
