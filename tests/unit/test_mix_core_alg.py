"""The loss against the released code's numbers, numbers worked out by hand, and identities."""

import json
import math
from pathlib import Path

import pytest
import torch

from exgrpo.mix_core_alg import LossSettings, mixed_policy_loss, mixed_token_losses, off_policy_ratio

CASES = json.loads((Path(__file__).parents[1] / "golden" / "loss_reference_cases.json").read_text())["cases"]
F64 = torch.float64


def settings_of(params):
    """A reference case's parameters in our names; its clip_upper_bound of 1.0 never binds below 1 + cliprange."""
    renamed = {"off_max_clip": "off_policy_max_clip", "off_min_clip": "off_policy_min_clip"}
    given = {renamed.get(name, name): value for name, value in params.items()}
    cliprange, upper = given.pop("cliprange"), given.pop("clip_upper_bound")
    assert upper <= 1 + cliprange
    given.pop("loss_remove_token_mean")
    return LossSettings(cliprange_low=cliprange, cliprange_high=cliprange, **given)


@pytest.mark.parametrize("case", CASES, ids=[f"{c['name']}-{c['seed']}" for c in CASES])
def test_value_and_gradient_of_the_released_loss(case):
    log_prob = torch.tensor(case["log_prob"], dtype=F64, requires_grad=True)
    replayed = torch.tensor(case["is_replayed"]).bool()
    replayed = replayed[:, None].expand_as(log_prob) if replayed.dim() == 1 else replayed
    loss, metrics = mixed_policy_loss(
        log_prob,
        torch.tensor(case["old_log_prob"], dtype=F64),
        torch.tensor(case["advantages"], dtype=F64),
        replayed,
        torch.tensor(case["response_mask"]).bool(),
        settings_of(case["params"]),
        case["params"]["loss_remove_token_mean"],
    )
    loss.backward()
    expected = case["expected"]
    assert loss.item() == pytest.approx(expected["pg_loss"], abs=1e-9)
    assert torch.allclose(log_prob.grad, torch.tensor(expected["grad_log_prob"], dtype=F64), atol=1e-9, rtol=0)
    if "all_max_clip" not in case["params"]:  # the release takes these means before it drops tokens, ours after
        assert metrics["fresh_loss"].item() == pytest.approx(expected["on_pg_loss"], abs=1e-9)
    assert metrics["replayed_loss"].item() == pytest.approx(expected["off_pg_loss"], abs=1e-9)


def one_row(log_ratio, advantage, replayed, **settings):
    """Loss and gradient of a single token of probability 1/e now."""
    log_prob = torch.tensor([[-1.0]], dtype=F64, requires_grad=True)
    old = torch.tensor([[-1.0 - log_ratio]], dtype=F64)
    ones = torch.ones(1, 1, dtype=torch.bool)
    losses, _ = mixed_token_losses(
        log_prob, old, torch.full((1, 1), advantage, dtype=F64), ones & replayed, ones, LossSettings(**settings)
    )
    losses.sum().backward()
    return losses.item(), log_prob.grad.item()


def test_a_replayed_token_by_hand():
    # w = 1, beta = 0.1: f = 1/1.1, f' = 0.1/1.21; A = 0.5
    loss, gradient = one_row(0.0, 0.5, True)
    assert loss == pytest.approx(-0.5 / 1.1)
    assert gradient == pytest.approx(-0.5 * 0.1 / 1.21)


def test_a_fresh_token_by_hand():
    # w = 1.5 above 1 + 0.2 with A = 2: clipped at 1.2, no gradient; unclipped -3 and slope -3
    assert one_row(math.log(1.5), 2.0, False, loss_remove_clip=False) == (pytest.approx(-2.4), 0.0)
    assert one_row(math.log(1.5), 2.0, False) == (pytest.approx(-3.0), pytest.approx(-3.0))


def test_the_gradient_factor_of_shaping_is_at_most_a_quarter():
    log_w = torch.linspace(-12, 12, 2001, dtype=F64, requires_grad=True)
    off_policy_ratio(log_w, log_w, "p_div_p_0.1", 1.0, 0.5).sum().backward()
    w = log_w.detach().exp()
    assert torch.allclose(log_w.grad, 0.1 * w / (w + 0.1) ** 2, atol=1e-12)
    assert log_w.grad.max() <= 0.25
    assert log_w.detach()[log_w.grad.argmax()].item() == pytest.approx(math.log(0.1), abs=0.01)


@pytest.mark.parametrize("name", ["no_reshape", "logp", "p_logp", "square_root", "pow", "p_div_p_0.1", "p_div_p_2"])
@pytest.mark.parametrize("extreme", [1e4, -1e4])
def test_extreme_ratios_stay_finite(name, extreme):
    loss, gradient = one_row(extreme, 1.0, True, off_policy_reshape=name)
    assert math.isfinite(loss) and math.isfinite(gradient)


def test_padding_may_hold_anything():
    log_prob = torch.tensor([[-1.0, math.nan, math.inf]], dtype=F64, requires_grad=True)
    garbage = torch.tensor([[-1.2, -math.inf, math.nan]], dtype=F64)
    mask = torch.tensor([[1, 0, 0]])
    for replayed in (True, False):
        log_prob.grad = None
        loss, metrics = mixed_policy_loss(log_prob, garbage, garbage.abs(), mask.bool() & replayed, mask)
        loss.backward()
        assert torch.isfinite(log_prob.grad).all() and log_prob.grad[0, 1:].eq(0).all()
        assert all(torch.isfinite(value) for value in metrics.values())


def test_without_replayed_rows_and_with_clipping_it_is_ppo():
    generator = torch.Generator().manual_seed(0)
    log_prob, old, advantages = (torch.randn(4, 7, generator=generator, dtype=F64) for _ in range(3))
    mask = torch.rand(4, 7, generator=generator) > 0.2
    losses, metrics = mixed_token_losses(
        log_prob, old, advantages, torch.zeros_like(mask), mask, LossSettings(loss_remove_clip=False)
    )
    ratio = (log_prob - old).exp()
    ppo = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    assert torch.allclose(losses, torch.where(mask, ppo, 0.0))
    assert metrics["replayed_ess"] == 0 and metrics["replayed_ratio_max"] == 0


def test_an_importance_weight_that_dominates_shows_in_the_effective_sample_size():
    log_prob = torch.zeros(1, 4, dtype=F64)
    ones = torch.ones(1, 4, dtype=torch.bool)
    even = mixed_token_losses(log_prob, log_prob - 1, log_prob, ones, ones, LossSettings())[1]
    old = torch.tensor([[-10.0, 10.0, 10.0, 10.0]], dtype=F64)
    skewed = mixed_token_losses(log_prob, old, log_prob, ones, ones, LossSettings())[1]
    assert even["replayed_ess"].item() == pytest.approx(1.0)
    assert skewed["replayed_ess"].item() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"off_policy_reshape": "p_div_p_0"}, "policy_loss.off_policy_reshape=p_div_p_0: must be no_reshape"),
        ({"on_policy_reshape": "sqrt"}, "policy_loss.on_policy_reshape=sqrt: must be"),
        ({"all_max_clip": 0.0}, "policy_loss.all_max_clip=0.0: must be a positive number, or -1"),
        ({"cliprange_low": -0.1}, "cliprange_low=-0.1"),
    ],
)
def test_a_wrong_setting_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        LossSettings(**wrong)


def test_shapes_that_differ_are_refused():
    ok = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"'advantages': \(2, 1\)"):
        mixed_policy_loss(ok, ok, torch.zeros(2, 1), ok.bool(), ok.bool())
