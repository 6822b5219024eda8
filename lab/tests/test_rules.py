"""lab/rules.py: the losses that were keys once, by their documented formulas, and the difficulty of fresh rollouts."""

import math

import pytest
import rules
import torch
from study_folders import RULES

from exgrpo import ExperienceConfig, ExperiencePool, RolloutGroup, Trajectory
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import mixed_token_losses

# two replayed rows, a success of three tokens and a failure of two: probabilities now, and of who wrote them
NOW = [[0.5, 0.9, 0.2], [0.3, 0.6, 0.5]]
PAST = [[0.4, 0.3, 0.25], [0.6, 0.5, 0.5]]
ADVANTAGE = [0.75, -0.25]
TOKENS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def w(row, column):
    return NOW[row][column] / PAST[row][column]


def check(name, value, slope):
    """The loss of each token and its derivative by log pi are those of (row, column) -> number."""
    now = torch.log(torch.tensor(NOW, dtype=torch.float64)).requires_grad_()
    past = torch.log(torch.tensor(PAST, dtype=torch.float64))
    advantages = torch.tensor(ADVANTAGE, dtype=torch.float64)[:, None].expand(2, 3)
    mask, replayed = torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.tensor([True, True])
    settings = LossSettings(off_policy_loss=f"{RULES}:{name}")
    found, _ = mixed_token_losses(now, past, advantages, replayed, mask, settings)
    found.sum().backward()
    wanted = torch.zeros(2, 2, 3, dtype=torch.float64)
    for row, column in TOKENS:
        wanted[:, row, column] = torch.tensor([value(row, column), slope(row, column)])
    torch.testing.assert_close(found.detach(), wanted[0])
    torch.testing.assert_close(now.grad, wanted[1])


def test_asymre_shifts_the_baseline():
    weight = [advantage + 0.1 for advantage in ADVANTAGE]
    check("asymre", lambda r, c: -weight[r] * math.log(NOW[r][c]), lambda r, c: -weight[r])


@pytest.mark.parametrize(("bound", "kept"), [(0.2, 4), (0.05, 3), (0.035, 1), (0.001, 0), (1.0, 5)])
def test_m2po_leaves_out_as_few_of_the_largest_as_bring_the_mean_square_below_the_bound(monkeypatch, bound, kept):
    """Squares .0332, .0498, .0498, .4805, 1.207 have the means .0332, .0415, .0443, .1533, .3640."""
    loaded = LossSettings(off_policy_loss=f"{RULES}:m2po")  # imports the file that the reference names
    from exgrpo.open_table import load_function

    monkeypatch.setitem(load_function("key", loaded.off_policy_loss).__globals__, "M2_BOUND", bound)
    order = sorted(TOKENS, key=lambda token: math.log(w(*token)) ** 2)
    left = set(order[:kept])
    slope = lambda r, c: -w(r, c) * ADVANTAGE[r] * ((r, c) in left)  # noqa: E731
    check("m2po", slope, slope)


def test_m2po_leaves_out_no_more_and_no_fewer_of_equal_tokens(monkeypatch):
    """Squares of 0, .09 and .09: with one of the equal ones the mean is .045, with both .06."""
    monkeypatch.setattr(rules, "M2_BOUND", 0.05)
    log_ratio, replayed = torch.tensor([[0.0, 0.3, -0.3]]), torch.ones(1, 3, dtype=torch.bool)
    left = rules.m2po(log_ratio, log_ratio, torch.ones(1, 3), replayed, LossSettings()) != 0
    assert left.tolist() == [[True, True, False]]


def test_fresh_files_by_the_share_of_what_was_generated():
    pool = ExperiencePool(ExperienceConfig(8, exp_difficulty=f"{RULES}:fresh"))
    success = Trajectory([1], [-1.0], 1)
    pool.observe(RolloutGroup("q", 6, (success,) * 3, replayed=1))
    assert pool.bucket("q") == 4
