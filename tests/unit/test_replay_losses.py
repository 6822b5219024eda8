"""Losses of replayed rows: the documented formulas, computed by hand, term by term, with the
standard library.
"""

import math

import pytest
import torch

from exgrpo.loss_settings import REPLAY_LOSS_NAMES, SHAPED, LossSettings
from exgrpo.mix_core_alg import mixed_token_losses
from exgrpo.replay_losses import REPLAY_LOSSES

# two replayed rows: a success of three tokens, a failure of two; probabilities under the current
# policy and the author
NOW = [[0.5, 0.9, 0.2], [0.3, 0.6, 0.5]]
PAST = [[0.4, 0.3, 0.25], [0.6, 0.5, 0.5]]
ADVANTAGE = [0.75, -0.25]
TOKENS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def losses(name, **settings):
    now = torch.log(torch.tensor(NOW, dtype=torch.float64)).requires_grad_()
    past = torch.log(torch.tensor(PAST, dtype=torch.float64))
    advantages = torch.tensor(ADVANTAGE, dtype=torch.float64)[:, None].expand(2, 3)
    replayed = torch.tensor([True, True])
    chosen = LossSettings(off_policy_loss=name, **settings)
    found, metrics = mixed_token_losses(now, past, advantages, replayed, MASK, chosen)
    found.sum().backward()
    return found.detach(), now.grad, metrics


def expected(value, slope):
    """The loss of each token and its derivative by log pi, of (row, column) -> number."""
    numbers = torch.zeros(2, 2, 3, dtype=torch.float64)
    for row, column in TOKENS:
        numbers[:, row, column] = torch.tensor([value(row, column), slope(row, column)])
    return numbers


def w(row, column):
    return NOW[row][column] / PAST[row][column]


def check(name, value, slope, **settings):
    found, gradient, _ = losses(name, **settings)
    wanted = expected(value, slope)
    torch.testing.assert_close(found, wanted[0])
    torch.testing.assert_close(gradient, wanted[1])


def test_topr_does_not_taper_a_success_and_tapers_a_failure_by_its_whole_row():
    taper = min(1.0, 0.3 / 0.6 * 0.6 / 0.5)
    assert taper == pytest.approx(0.6)
    weight = [0.75, -0.25 * taper]
    check("topr", lambda r, c: -weight[r] * math.log(NOW[r][c]), lambda r, c: -weight[r])


@pytest.mark.parametrize("name", [name for name in REPLAY_LOSS_NAMES if name != SHAPED])
def test_all_max_clip_leaves_likely_tokens_without_a_loss(name):
    found, gradient, _ = losses(name, all_max_clip=0.55)  # of NOW: .9 and .6
    without, _, _ = losses(name)
    silent = torch.tensor([[False, True, False], [False, True, False]])
    assert not found[silent].any() and not gradient[silent].any()
    torch.testing.assert_close(found[~silent], without[~silent])


def test_topr_of_a_failure_that_has_become_likelier_is_not_more_than_reinforce():
    now, past = torch.log(torch.tensor([[0.8]])).requires_grad_(), torch.log(torch.tensor([[0.2]]))
    settings = LossSettings(off_policy_loss="topr")
    found, _ = mixed_token_losses(
        now, past, torch.tensor([[-1.0]]), torch.tensor([True]), torch.ones(1, 1), settings
    )
    assert float(found.sum()) == pytest.approx(math.log(0.8))


def test_clip_is_ppos():
    def value(row, column):
        bounded = min(max(w(row, column), 0.8), 1.2)
        return -min(w(row, column) * ADVANTAGE[row], bounded * ADVANTAGE[row])

    def slope(row, column):
        stopped = w(row, column) > 1.2 if row == 0 else w(row, column) < 0.8
        return 0.0 if stopped else -w(row, column) * ADVANTAGE[row]

    check("clip", value, slope)
    assert slope(0, 0) == slope(0, 1) == slope(1, 0) == 0.0 != slope(0, 2)


@pytest.mark.parametrize("name", REPLAY_LOSS_NAMES)
def test_a_fresh_row_beside_them_has_its_own_loss(name):
    now, past = torch.log(torch.tensor(NOW)).requires_grad_(), torch.log(torch.tensor(PAST))
    advantages = torch.tensor(ADVANTAGE)[:, None].expand(2, 3)
    settings = LossSettings(off_policy_loss=name)
    mixed, metrics = mixed_token_losses(
        now, past, advantages, torch.tensor([True, False]), MASK, settings
    )
    torch.testing.assert_close(mixed[1], torch.tensor([0.25 * w(1, 0), 0.25 * w(1, 1), 0.0]))
    assert float(metrics["replayed_ratio_mean"]) == pytest.approx(
        sum(w(0, c) for c in range(3)) / 3
    )
    assert torch.isfinite(mixed).all()


@pytest.mark.parametrize("name", REPLAY_LOSS_NAMES)
def test_what_is_masked_may_hold_anything(name):
    now, past = torch.log(torch.tensor(NOW)), torch.log(torch.tensor(PAST))
    now[1, 2] = past[1, 2] = float("nan")
    now.requires_grad_()
    advantages = torch.tensor(ADVANTAGE)[:, None].expand(2, 3)
    settings = LossSettings(off_policy_loss=name)
    found, _ = mixed_token_losses(now, past, advantages, torch.tensor([True, True]), MASK, settings)
    found.sum().backward()
    assert found[1, 2] == 0 and now.grad[1, 2] == 0 and torch.isfinite(now.grad).all()


def test_the_names_are_those_of_the_table():
    assert (SHAPED, *REPLAY_LOSSES.names) == REPLAY_LOSS_NAMES


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"off_policy_loss": "tapered"},
            "policy_loss.off_policy_loss=tapered: must be one of shaped, clip, topr",
        ),
        ({"off_policy_loss": "pkg://math:floor"}, "must take the arguments"),
    ],
)
def test_a_wrong_setting_is_one_line(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        LossSettings(**settings)
    assert "\n" not in str(error.value)
