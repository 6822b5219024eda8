"""The fresh tokens' loss by any policy loss of verl's, the replayed tokens' by ours, and rollout
correction of both.
"""

import pytest
import torch
from composed import job
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass

from exgrpo.on_verl.correct import FRESH, ON_POLICY, REPLAYED, corrected
from exgrpo.on_verl.mix_actor import compute_policy_loss_exgrpo
from exgrpo.preflight.modes import FRESH_LOSSES, UNFIT_LOSSES

ROWS, LENGTH = 6, 5
AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
OTHERS = [name for name in FRESH_LOSSES if name != "exgrpo"]


@pytest.fixture(scope="module")
def make_actor():
    """The actor's configuration as verl hands it to the loss, with what ppo_loss notes there of the
    mini-batch.
    """
    config = job("data.max_response_length=5", "actor_rollout_ref.actor.ppo_mini_batch_size=2")

    def make(fresh_loss, aggregation="token-mean"):
        settings = config.actor_rollout_ref.actor.copy()
        OmegaConf.set_struct(settings, False)
        settings.policy_loss.fresh_loss_mode = fresh_loss
        settings.policy_loss.dro_beta = 0.1
        settings.ppo_micro_batch_size_per_gpu = 1
        settings.loss_agg_mode = aggregation
        actor = omega_conf_to_dataclass(settings)
        info = {
            "dp_size": 1,
            "batch_num_tokens": 40,
            "global_batch_size": 8,
            "loss_scale_factor": 5,
        }
        actor.global_batch_info.update(info)
        return actor

    return make


@pytest.fixture
def batch():
    """Rows of several lengths; the last two are replayed."""
    draw = torch.Generator().manual_seed(0)
    log_prob = -torch.rand(ROWS, LENGTH, generator=draw) * 3
    mask = torch.arange(LENGTH) < torch.tensor([5, 3, 4, 1, 2, 5]).unsqueeze(1)
    return {
        "old_log_prob": log_prob + 0.6 * torch.randn(ROWS, LENGTH, generator=draw),
        "log_prob": log_prob.requires_grad_(),
        "advantages": torch.randn(ROWS, 1, generator=draw).expand(ROWS, LENGTH),
        "response_mask": mask,
    }


def codes(fresh=FRESH, replayed=(4, 5)):
    phase = torch.full((ROWS, LENGTH), fresh)
    phase[list(replayed)] = REPLAYED
    return phase


def result(loss, batch, actor, **more):
    """(loss, gradient, metrics) of one policy loss."""
    batch["log_prob"].grad = None
    value, metrics = loss(**batch, loss_agg_mode=actor.loss_agg_mode, config=actor, **more)
    value.backward()
    return value.detach().clone(), batch["log_prob"].grad.clone(), metrics


def test_every_policy_loss_of_verls_is_in_the_table_or_known_to_be_refused():
    known = {*FRESH_LOSSES, *UNFIT_LOSSES}
    assert {
        name
        for name, loss in POLICY_LOSS_REGISTRY.items()
        if loss.__module__.startswith(("verl.", "exgrpo."))
    } == known


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", OTHERS)
def test_fresh_rows_have_verls_loss_and_replayed_rows_ours(make_actor, batch, name, aggregation):
    actor, ours = make_actor(name, aggregation), make_actor("exgrpo", aggregation)
    value, gradient, metrics = result(
        compute_policy_loss_exgrpo, batch, actor, rollout_is_weights=codes()
    )
    masked = batch | {"response_mask": batch["response_mask"] & (codes() == FRESH)}
    theirs, their_gradient, their_metrics = result(get_policy_loss_fn(name), masked, actor)
    masked["response_mask"] = batch["response_mask"] & (codes() == REPLAYED)
    old, old_gradient, _ = result(
        compute_policy_loss_exgrpo, masked, ours, rollout_is_weights=codes()
    )
    torch.testing.assert_close(value, theirs + old)
    torch.testing.assert_close(gradient, their_gradient + old_gradient)
    assert (
        gradient[:4].abs().sum() > 0
        and torch.equal(gradient[4:], old_gradient[4:])
        and old_gradient[4:].any()
    )
    assert their_metrics.keys() <= metrics.keys() and metrics["actor/sum/replayed_tokens"] == 7
    assert metrics["actor/sum/fresh_tokens"] == 13 and metrics["actor/sum/fresh_loss"] == 0


@pytest.mark.parametrize("name", OTHERS)
def test_without_a_replayed_row_it_is_verls_loss_and_with_them_alone_it_is_ours(
    make_actor, batch, name
):
    actor = make_actor(name)
    for phase in (codes(ON_POLICY, ()), codes(FRESH, ())):
        value, gradient, _ = result(
            compute_policy_loss_exgrpo, batch, actor, rollout_is_weights=phase
        )
        theirs, their_gradient, _ = result(get_policy_loss_fn(name), batch, actor)
        torch.testing.assert_close(value, theirs)
        torch.testing.assert_close(gradient, their_gradient)
    everything = codes(replayed=range(ROWS))  # a micro-batch may hold nothing else
    alone = result(compute_policy_loss_exgrpo, batch, actor, rollout_is_weights=everything)
    ours = result(
        compute_policy_loss_exgrpo, batch, make_actor("exgrpo"), rollout_is_weights=everything
    )
    torch.testing.assert_close(alone[:2], ours[:2])


@pytest.mark.parametrize("name", FRESH_LOSSES)
def test_correction_weighs_fresh_tokens_and_leaves_replayed_ones(make_actor, batch, name):
    """Weights in [0, 2], as truncated importance sampling and IcePop make them; replayed rows would
    get 7.
    """
    actor = make_actor(name)
    weights = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(1)) * 2
    weights[0] = 0
    weights[4:] = 7
    masked = batch | {"response_mask": batch["response_mask"] & (codes() == FRESH)}
    for fresh in (FRESH, ON_POLICY):
        phase = corrected(codes(fresh), weights)
        _, gradient, _ = result(compute_policy_loss_exgrpo, batch, actor, rollout_is_weights=phase)
        _, plain, _ = result(
            compute_policy_loss_exgrpo, batch, actor, rollout_is_weights=codes(fresh)
        )
        torch.testing.assert_close(gradient[4:], plain[4:])
        expected = plain * weights
        if name != "exgrpo":
            _, expected, _ = result(
                get_policy_loss_fn(name), masked, actor, rollout_is_weights=weights
            )
        torch.testing.assert_close(gradient[:4], expected[:4])
        assert not torch.equal(gradient[:4], plain[:4])


def test_before_mixing_the_clipped_objective_holds_and_in_a_mixed_step_none(make_actor, batch):
    actor = make_actor("exgrpo")
    before = result(
        compute_policy_loss_exgrpo, batch, actor, rollout_is_weights=codes(ON_POLICY, ())
    )
    theirs = result(get_policy_loss_fn("vanilla"), batch, actor)
    torch.testing.assert_close(before[0], theirs[0])
    mixed = result(compute_policy_loss_exgrpo, batch, actor, rollout_is_weights=codes(FRESH, ()))
    assert mixed[0] != before[0] and mixed[2]["actor/sum/fresh_clipped"] == 0
