"""ExperienceBucketManager with plain strings; its invariants are checked after every change."""

import random

import pytest

from exgrpo.experience.experience_bucket_manager import ExperienceBucketManager


def filled(**places):
    manager = ExperienceBucketManager(8)
    for question, bucket in places.items():
        manager.put(question, bucket)
        manager.check_invariants()
    return manager


def test_put_moves_a_question_and_fills_the_hole_with_the_last():
    manager = filled(a=3, b=3, c=3, d=5)
    manager.put("a", 5)
    manager.check_invariants()
    assert list(manager.members(3)) == ["c", "b"]
    assert list(manager.members(5)) == ["d", "a"]
    assert manager.place("c") == (3, 0) and manager.place("a") == (5, 1)
    assert manager.sizes() == [0, 0, 0, 2, 0, 2, 0, 0, 0]


def test_putting_a_question_where_it_is_changes_nothing():
    manager = filled(a=3, b=3, c=3)
    manager.put("a", 3)
    assert list(manager.members(3)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("gone", "left"), [("c", ["a", "b"]), ("a", ["c", "b"]), ("b", ["a", "c"])]
)
def test_removing_the_final_the_first_and_a_middle_question(gone, left):
    manager = filled(a=3, b=3, c=3)
    manager.remove(gone)
    manager.check_invariants()
    assert list(manager.members(3)) == left
    assert gone not in manager and len(manager) == 2


def test_removing_the_only_question():
    manager = filled(a=0)
    manager.remove("a")
    manager.check_invariants()
    assert len(manager) == 0 and manager.sizes() == [0] * 9
    with pytest.raises(KeyError):
        manager.remove("a")


def test_the_order_of_entry_survives_moves_but_not_leaving():
    manager = filled(a=3, b=4, c=5)
    manager.put("a", 1)
    assert list(manager) == ["a", "b", "c"]
    manager.remove("a")
    manager.put("a", 1)
    assert list(manager) == ["b", "c", "a"]


def test_a_retired_question_never_returns():
    manager = filled(a=3, b=3)
    manager.retire("a")
    manager.retire("never seen")
    manager.retire("a")
    manager.check_invariants()
    assert (
        manager.is_retired("a") and manager.is_retired("never seen") and not manager.is_retired("b")
    )
    assert manager.retired_count == 2 and "a" not in manager
    with pytest.raises(ValueError, match="question 'a' is retired"):
        manager.put("a", 3)
    manager.check_invariants()


@pytest.mark.parametrize("bucket", [-1, 9])
def test_a_bucket_out_of_range_is_refused_before_anything_changes(bucket):
    manager = filled(a=3)
    with pytest.raises(
        ValueError, match=f"bucket={bucket} of question 'a': must be between 0 and 8"
    ):
        manager.put("a", bucket)
    assert manager.place("a") == (3, 0)
    manager.check_invariants()


def test_state_restores_every_order():
    manager, rng = ExperienceBucketManager(4), random.Random(0)
    for _ in range(500):
        question = f"q{rng.randrange(60)}"
        if manager.is_retired(question):
            continue
        action = rng.random()
        if action < 0.05:
            manager.retire(question)
        elif action < 0.2 and question in manager:
            manager.remove(question)
        else:
            manager.put(question, rng.randrange(5))
        manager.check_invariants()
    copy = ExperienceBucketManager.from_state(4, manager.state())
    copy.check_invariants()
    assert copy.state() == manager.state()
    assert [list(copy.members(bucket)) for bucket in range(5)] == [
        list(manager.members(bucket)) for bucket in range(5)
    ]
    assert list(copy) == list(manager) and len(copy) > 20 and copy.retired_count > 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": [3, 9]}, "bucket=9 of question 'b'"),
        ({"positions": [0, 2]}, "place of question 'b'"),
        ({"positions": [0, 0]}, "place of question"),
        ({"questions": ["a", "a"]}, "2 questions, 1 of them distinct"),
        ({"retired": ["b"]}, "retired question 'b' is in a bucket"),
        ({"positions": [0]}, "shorter"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(changes, message):
    state = filled(a=3, b=3).state()
    ExperienceBucketManager.from_state(8, state)
    with pytest.raises(ValueError, match=message):
        ExperienceBucketManager.from_state(8, state._replace(**changes))


@pytest.mark.parametrize("damage", ["lost", "moved", "both"])
def test_check_invariants_sees_damage(damage):
    manager = filled(a=3, b=3)
    if damage == "lost":
        manager._members[3].pop()
    elif damage == "moved":
        manager._members[3].reverse()
    else:
        manager._retired["a"] = None
    with pytest.raises(ValueError):
        manager.check_invariants()
