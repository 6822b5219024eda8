"""Sums of any parts make the metrics of the whole."""

import pytest
import torch
from composed import job

from exgrpo.loss_metrics import MAXIMUM, SUM, finish, means_of, unscale_entropy
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import mixed_token_losses, token_losses_and_sums

SETTINGS = LossSettings(loss_remove_clip=False)
F64 = torch.float64


def batch(replayed_rows):
    generator = torch.Generator().manual_seed(0)
    now, past, advantages = (torch.randn(16, 9, generator=generator, dtype=F64) for _ in range(3))
    mask = torch.rand(16, 9, generator=generator) > 0.3
    replayed = torch.zeros(16, dtype=torch.bool)
    replayed[list(replayed_rows)] = True
    return now, past, advantages, replayed, mask


@pytest.mark.parametrize("replayed_rows", [[], [5], [0, 1, 14], range(16)])
@pytest.mark.parametrize("rows_each", [1, 4, 5, 16])
@pytest.mark.parametrize(
    "scale", [1.0, 1 / 16]
)  # ranks times updates, by which verl divides all sums
def test_parts_make_the_whole(replayed_rows, rows_each, scale):
    whole = batch(replayed_rows)
    expected = mixed_token_losses(*whole, SETTINGS)[1]
    parts = [
        token_losses_and_sums(*part, SETTINGS)[1]
        for part in zip(*(t.split(rows_each) for t in whole), strict=True)
    ]
    metrics = {
        SUM + name: scale * float(sum(part[name] for part in parts))
        for name in parts[0]
        if name != MAXIMUM
    }
    metrics[f"actor/{MAXIMUM}"] = max(float(part[MAXIMUM]) for part in parts)
    finish(metrics)
    assert metrics == pytest.approx(
        {f"actor/{name}": float(value) for name, value in expected.items()}, rel=1e-6, abs=1e-9
    )


def test_the_entropy_is_a_mean_over_tokens():
    metrics = {SUM + "entropy": 3.0, SUM + "entropy_tokens": 12.0, "actor/lr": 0.5}
    finish(metrics)
    assert metrics == {"actor/entropy_loss": 0.25, "actor/lr": 0.5}


def test_without_a_log_prob_pass_no_entropy_is_unscaled():
    """Rollout correction that takes the rollout's log-probs leaves the pass out."""
    config = job(
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
        "data.max_response_length=64",
    )
    config.actor_rollout_ref.actor.loss_scale_factor = 128
    with_pass, without = {"actor/entropy": 0.5}, {}
    for metrics in (with_pass, without):
        unscale_entropy(metrics, config)
    assert with_pass == {"actor/entropy": 1.0} and without == {}


def test_verls_own_loss_has_nothing_to_finish():
    metrics = {"actor/ppo_kl": 0.5}
    finish(metrics)
    assert metrics == {"actor/ppo_kl": 0.5}


def test_verl_averages_sums_by_no_accident_of_their_names():
    """Its reduction looks for "max" and "min" anywhere in a name."""
    names = [name for name in token_losses_and_sums(*batch([0]), SETTINGS)[1] if name != MAXIMUM]
    assert not [
        name for name in [*names, "entropy", "entropy_tokens"] if "max" in name or "min" in name
    ]
    assert "max" in MAXIMUM and set(means_of(dict.fromkeys([*names, MAXIMUM], 1.0))) >= {
        "replayed_ess",
        MAXIMUM,
    }
