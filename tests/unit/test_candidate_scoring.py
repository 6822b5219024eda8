"""How candidates are dealt to the ranks."""

import pytest

from exgrpo.on_verl.complete import balanced_order


@pytest.mark.parametrize(("ranks", "multiple"), [(8, 8), (8, 32), (64, 64)])
def test_ranks_get_equal_numbers_and_about_equal_work(ranks, multiple):
    """Questions one after another, the first ones' answers eight times as long as the last
    ones'.
    """
    lengths = [8000 - 110 * question + 10 * answer for question in range(64) for answer in range(5)]
    order = balanced_order(lengths, ranks, multiple)
    assert (
        len(order) % multiple == 0
        and len(order) - len(lengths) < multiple
        and set(order) == set(range(320))
    )
    assert sorted(order) == sorted(
        [*range(320), *[315] * (len(order) - 320)]
    )  # the shortest fills up
    share = len(order) // ranks
    tokens = [
        sum(lengths[row] for row in order[rank * share : (rank + 1) * share])
        for rank in range(ranks)
    ]
    assert max(tokens) < 1.1 * min(tokens)


def test_one_rank_keeps_the_pools_order():
    assert balanced_order([5, 9, 2, 7], 1, 1) == [0, 1, 2, 3]
    assert balanced_order([5, 9, 2, 7], 1, 3) == [0, 1, 2, 3, 2, 2]


def test_fewer_candidates_than_ranks_are_filled_up():
    assert sorted(balanced_order([5, 9], 4, 4)) == [0, 0, 0, 1]
