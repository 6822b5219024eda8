"""The pre-filter: which candidates look best by what was recorded; and how they are dealt to the ranks."""

import math

import pytest

from exgrpo.experience.trajectory import Trajectory
from exgrpo.experience.trajectory_selector import TrajectorySelector
from exgrpo.on_verl.complete import dealt

UNKNOWN = math.nan


def candidates(*entropies):
    return tuple(Trajectory([1, 2], [-0.5, -0.25], step=1, entropy=entropy) for entropy in entropies)


def kept(found, limit, **keys):
    """Positions of what is left."""
    selector = TrajectorySelector(keys.get("exp_metric", "ent"), keys.get("exp_select_mode", "argmin"))
    left = selector.prefilter(found, limit)
    return [next(i for i, one in enumerate(found) if one is trajectory) for trajectory in left]


@pytest.mark.parametrize(("mode", "positions"), [("argmin", [1, 3]), ("argmax", [0, 2])])
def test_the_recorded_entropy_decides_and_the_order_stays(mode, positions):
    assert kept(candidates(0.9, 0.1, 0.8, 0.2), 2, exp_select_mode=mode) == positions


@pytest.mark.parametrize("mode", ["argmin", "argmax"])
def test_an_unknown_entropy_is_the_most_promising(mode):
    assert kept(candidates(0.9, UNKNOWN, 0.1, UNKNOWN), 2, exp_select_mode=mode) == [1, 3]
    assert kept(candidates(0.9, UNKNOWN, 0.1), 1, exp_select_mode=mode) == [1]


def test_of_equals_the_first_recorded_stay():
    assert kept(candidates(0.5, 0.5, 0.5), 2) == [0, 1]


@pytest.mark.parametrize("limit", [None, 3, 4])
def test_nothing_is_passed_over_without_need(limit):
    assert kept(candidates(0.9, 0.1, 0.8), limit) == [0, 1, 2]


def test_random_choice_is_among_all():
    assert kept(candidates(0.9, 0.1, 0.8), 1, exp_metric="random") == [0, 1, 2]


def test_perplexity_is_recorded_in_the_log_probs():
    """Entropies say the first, log-probs the third; who has none is unknown."""
    found = (
        Trajectory([1], [-3.0], step=1, entropy=0.1),
        Trajectory([1], [-2.0], step=1, entropy=0.2),
        Trajectory([1], [-1.0], step=1, entropy=0.3),
    )
    assert kept(found, 1, exp_metric="ppl") == [2]
    assert kept(found, 1, exp_metric="ppl", exp_select_mode="argmax") == [0]
    assert kept((*found, Trajectory.without_log_probs([1], step=1)), 2, exp_metric="ppl") == [2, 3]


@pytest.mark.parametrize(("ranks", "multiple"), [(8, 8), (8, 32), (64, 64)])
def test_ranks_get_equal_numbers_and_about_equal_work(ranks, multiple):
    """Questions one after another, the first ones' answers eight times as long as the last ones'."""
    lengths = [8000 - 110 * question + 10 * answer for question in range(64) for answer in range(5)]
    order = dealt(lengths, ranks, multiple)
    assert len(order) % multiple == 0 and len(order) - len(lengths) < multiple and set(order) == set(range(320))
    assert sorted(order) == sorted([*range(320), *[315] * (len(order) - 320)])  # the shortest fills up
    share = len(order) // ranks
    tokens = [sum(lengths[row] for row in order[rank * share : (rank + 1) * share]) for rank in range(ranks)]
    assert max(tokens) < 1.1 * min(tokens)


def test_one_rank_keeps_the_pools_order():
    assert dealt([5, 9, 2, 7], 1, 1) == [0, 1, 2, 3]
    assert dealt([5, 9, 2, 7], 1, 3) == [0, 1, 2, 3, 2, 2]


def test_fewer_candidates_than_ranks_are_filled_up():
    assert sorted(dealt([5, 9], 4, 4)) == [0, 0, 0, 1]
