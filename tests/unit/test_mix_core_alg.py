"""The loss against the released code's numbers, numbers worked out by hand, and identities."""

import json
import math
from pathlib import Path

import pytest
import torch

from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import mixed_policy_loss, mixed_token_losses, off_policy_ratio

CASES = json.loads(
    (Path(__file__).parents[1] / "golden" / "loss_reference_cases.json").read_text()
)["cases"]
F64 = torch.float64


def settings_of(params):
    """A reference case's parameters in our names."""
    renamed = {"off_max_clip": "off_policy_max_clip", "off_min_clip": "off_policy_min_clip"}
    given = {renamed.get(name, name): value for name, value in params.items()}
    cliprange = given.pop("cliprange")
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
    assert torch.allclose(
        log_prob.grad, torch.tensor(expected["grad_log_prob"], dtype=F64), atol=1e-9, rtol=0
    )
    if (
        "all_max_clip" not in case["params"]
    ):  # the release takes these means before it drops tokens, ours after
        assert metrics["fresh_loss"].item() == pytest.approx(expected["on_pg_loss"], abs=1e-9)
    assert metrics["replayed_loss"].item() == pytest.approx(expected["off_pg_loss"], abs=1e-9)
    assert metrics["replayed_shaped_mean"].item() == pytest.approx(
        expected["off_ratio_mean"], abs=1e-9
    )
    if not replayed.any():  # the release takes these over replayed tokens too, ours over fresh ones
        assert metrics["ppo_kl"].item() == pytest.approx(expected["ppo_kl"], abs=1e-9)
        assert metrics["fresh_clipfrac"].item() == pytest.approx(
            expected["on_pg_clipfrac"], abs=1e-7
        )


def one_row(log_ratio, advantage, replayed, **settings):
    """Loss and gradient of a single token of probability 1/e now."""
    log_prob = torch.tensor([[-1.0]], dtype=F64, requires_grad=True)
    old = torch.tensor([[-1.0 - log_ratio]], dtype=F64)
    ones = torch.ones(1, 1, dtype=torch.bool)
    losses, _ = mixed_token_losses(
        log_prob,
        old,
        torch.full((1, 1), advantage, dtype=F64),
        ones & replayed,
        ones,
        LossSettings(**settings),
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
    # w = 0.5 below 1 - 0.2 with A = -2: clipped at 0.8
    assert one_row(math.log(0.5), -2.0, False, loss_remove_clip=False) == (pytest.approx(1.6), 0.0)


def test_the_clip_range_may_be_wider_above_than_below():
    wide = {"loss_remove_clip": False, "cliprange_low": 0.1, "cliprange_high": 0.3}
    assert one_row(math.log(1.5), 2.0, False, **wide) == (pytest.approx(-2.6), 0.0)
    assert one_row(math.log(0.5), -2.0, False, **wide) == (pytest.approx(1.8), 0.0)


def test_clip_upper_bound_raises_the_upper_end_of_the_range_only():
    inside = {"loss_remove_clip": False, "clip_upper_bound": 2.0}
    assert one_row(math.log(1.5), 2.0, False, **inside) == (
        pytest.approx(-3.0),
        pytest.approx(-3.0),
    )
    assert one_row(math.log(3.0), 2.0, False, **inside) == (pytest.approx(-4.0), 0.0)
    assert one_row(math.log(0.5), -2.0, False, **inside) == (pytest.approx(1.6), 0.0)


def test_the_gradient_factor_of_shaping_is_at_most_a_quarter():
    log_w = torch.linspace(-12, 12, 2001, dtype=F64, requires_grad=True)
    off_policy_ratio(log_w, log_w, "p_div_p_0.1", 1.0, 0.5).sum().backward()
    w = log_w.detach().exp()
    assert torch.allclose(log_w.grad, 0.1 * w / (w + 0.1) ** 2, atol=1e-12)
    assert log_w.grad.max() <= 0.25
    assert log_w.detach()[log_w.grad.argmax()].item() == pytest.approx(math.log(0.1), abs=0.01)


@pytest.mark.parametrize(
    "name", ["no_reshape", "logp", "p_logp", "square_root", "pow", "p_div_p_0.1", "p_div_p_2"]
)
@pytest.mark.parametrize("extreme", [1e4, -1e4])
@pytest.mark.parametrize("replayed", [True, False])
def test_extreme_ratios_stay_finite(name, extreme, replayed):
    loss, gradient = one_row(
        extreme, 1.0, replayed, off_policy_reshape=name, on_policy_reshape=name
    )
    assert math.isfinite(loss) and math.isfinite(gradient)


@pytest.mark.parametrize("name", ["no_reshape", "logp", "p_logp", "square_root", "p_div_p_0.1"])
def test_padding_may_hold_anything(name):
    variant = LossSettings(
        off_policy_reshape=name,
        on_policy_reshape=name,
        loss_remove_clip=False,
        all_max_clip=0.9,
        off_policy_max_clip=2,
    )
    log_prob = torch.tensor([[-1.0, math.nan, math.inf]], dtype=F64, requires_grad=True)
    garbage = torch.tensor([[-1.2, -math.inf, math.nan]], dtype=F64)
    mask = torch.tensor([[1, 0, 0]])
    for replayed in (True, False):
        log_prob.grad = None
        loss, metrics = mixed_policy_loss(
            log_prob, garbage, garbage.abs(), mask.bool() & replayed, mask, variant
        )
        loss.backward()
        assert torch.isfinite(log_prob.grad).all() and log_prob.grad[0, 1:].eq(0).all()
        assert all(torch.isfinite(value) for value in metrics.values())


def test_without_replayed_rows_and_with_clipping_it_is_ppo():
    generator = torch.Generator().manual_seed(0)
    log_prob, old, advantages = (
        torch.randn(4, 7, generator=generator, dtype=F64) for _ in range(3)
    )
    mask = torch.rand(4, 7, generator=generator) > 0.2
    losses, metrics = mixed_token_losses(
        log_prob,
        old,
        advantages,
        torch.zeros_like(mask),
        mask,
        LossSettings(loss_remove_clip=False),
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
        (
            {"off_policy_reshape": "p_div_p_0"},
            "policy_loss.off_policy_reshape=p_div_p_0: must be no_reshape",
        ),
        ({"on_policy_reshape": "sqrt"}, "policy_loss.on_policy_reshape=sqrt: must be"),
        (
            {"all_max_clip": 0.0},
            "policy_loss.all_max_clip=0.0: must be a finite number above 0, or -1",
        ),
        (
            {"off_policy_min_clip": math.inf},
            "policy_loss.off_policy_min_clip=inf: must be a finite number above 0",
        ),
        (
            {"off_policy_max_clip": 0.5, "off_policy_min_clip": 2.0},
            "policy_loss.off_policy_max_clip=0.5: must be above "
            "policy_loss.off_policy_min_clip=2.0, or -1",
        ),
        (
            {"off_policy_max_clip": 2.0, "off_policy_min_clip": 2.0},
            "off_policy_max_clip=2.0: must be above",
        ),
        ({"cliprange_low": -0.1}, "cliprange_low=-0.1"),
    ],
)
def test_a_wrong_setting_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        LossSettings(**wrong)


OK = {
    "log_prob": torch.zeros(2, 3),
    "old_log_prob": torch.zeros(2, 3),
    "advantages": torch.ones(2, 3),
    "is_replayed": torch.zeros(2, 3, dtype=torch.bool),
    "response_mask": torch.ones(2, 3),
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"advantages": torch.zeros(2, 1)}, r"'advantages': \(2, 1\)"),
        ({"is_replayed": torch.zeros(3, dtype=torch.bool)}, r"'is_replayed': \(3,\)"),
        ({"is_replayed": torch.zeros(2, 3)}, "is_replayed: must be torch.bool, got torch.float32"),
        (
            {"log_prob": torch.zeros(2, 3, dtype=torch.long)},
            "log_prob: must be floating point, got torch.int64",
        ),
        ({name: tensor[0] for name, tensor in OK.items()}, r"must be \[rows, tokens\]"),
    ],
)
def test_shapes_and_dtypes_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        mixed_policy_loss(**(OK | wrong))


def test_replayed_may_be_said_of_whole_rows():
    tokens = torch.tensor([[True] * 3, [False] * 3])
    expected = mixed_policy_loss(**(OK | {"is_replayed": tokens}))
    for rows in (tokens[:, 0], tokens[:, :1]):
        loss, metrics = mixed_policy_loss(**(OK | {"is_replayed": rows}))
        assert loss == expected[0] and metrics == expected[1]


@pytest.mark.parametrize("response_mask", [torch.zeros(2, 3), torch.ones(2, 3)])
@pytest.mark.parametrize("replayed", [True, False])
def test_metrics_have_the_same_keys_and_are_finite_and_detached(response_mask, replayed):
    given = OK | {"response_mask": response_mask, "is_replayed": torch.full((2,), replayed)}
    given["log_prob"] = torch.zeros(2, 3, requires_grad=True)
    metrics = mixed_policy_loss(**given)[1]
    assert metrics.keys() == mixed_policy_loss(**OK)[1].keys()
    assert all(m.dim() == 0 and torch.isfinite(m) and not m.requires_grad for m in metrics.values())
    empty = "replayed_" if not replayed else "fresh_"
    if response_mask.any():
        assert all(value == 0 for name, value in metrics.items() if name.startswith(empty))
    else:
        assert all(value == 0 for value in metrics.values())


def test_settings_from_a_command_line():
    given = {
        "off_policy_reshape": "p_div_p_0.5",
        "loss_remove_clip": "False",
        "off_policy_max_clip": "2",
    }
    settings = LossSettings(
        off_policy_reshape="p_div_p_0.5", loss_remove_clip=False, off_policy_max_clip=2.0
    )
    assert LossSettings.from_mapping(given) == settings


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("beta", "1", "policy_loss.beta=1: no such key; known keys are cliprange_low"),
        ("loss_remove_clip", "maybe", "policy_loss.loss_remove_clip=maybe: must be true or false"),
        ("cliprange_low", "x", "policy_loss.cliprange_low=x: must be a number"),
        (
            "all_max_clip",
            "0",
            "policy_loss.all_max_clip=0.0: must be a finite number above 0, or -1",
        ),
    ],
)
def test_a_wrong_setting_from_a_command_line_is_named(key, value, message):
    with pytest.raises(ValueError) as caught:
        LossSettings.from_mapping({key: value})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["log_prob", "old_log_prob", "advantages"])
def test_an_unmasked_nan_is_an_error_that_names_where_it_is(name):
    values = {each: torch.full((2, 3), -1.0) for each in ("log_prob", "old_log_prob", "advantages")}
    values[name][1, 2] = float("nan")
    rows, mask = torch.tensor([False, True]), torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=f"^{name}: NaN at 1 of 6 tokens"):
        mixed_token_losses(**values, is_replayed=rows, response_mask=mask, settings=LossSettings())
    mask[1, 2] = 0
    losses, _ = mixed_token_losses(
        **values, is_replayed=rows, response_mask=mask, settings=LossSettings()
    )
    assert bool(losses.isfinite().all())
