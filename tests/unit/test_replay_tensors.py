"""Entropies, weights, advantages and loss against closed forms, the trainer's own functions and
verl's.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exgrpo import (
    compute_entropy,
    compute_grpo_loss,
    compute_importance_weights,
    group_advantages,
    mean_entropy,
)
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import mixed_policy_loss

F64 = torch.float64


def batch(seed=0, rows=6, length=5):
    """Two groups of three, the first row of the second replayed; the last tokens of some rows are
    padding.
    """
    torch.manual_seed(seed)
    log_prob = (-torch.rand(rows, length, dtype=F64)).requires_grad_()
    old = log_prob.detach() + 0.3 * torch.randn(rows, length, dtype=F64)
    mask = torch.arange(length) < torch.randint(1, length + 1, (rows, 1))
    replayed = torch.arange(rows) == 3
    rollouts = {
        "log_prob": log_prob,
        "old_log_prob": old,
        "response_mask": mask,
        "group": [7, 7, 7, "b", "b", "b"],
    }
    return rollouts | {"is_replayed": replayed}, torch.tensor([1.0, 0, 0, 1, 1, 0])


def test_entropy_of_uniform_and_certain_distributions():
    logits = torch.zeros(2, 3, 8)
    logits[1] = -math.inf
    logits[1, :, 2] = 5.0
    entropies = compute_entropy(logits)
    assert entropies.shape == (2, 3)
    assert torch.allclose(entropies[0], torch.full((3,), math.log(8))) and entropies[
        1
    ].tolist() == [0, 0, 0]
    p = 0.2
    two = compute_entropy(torch.tensor([math.log(p), math.log(1 - p)], dtype=F64))
    assert two.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), rel=1e-12)


def test_a_rows_entropy_is_the_selectors_mean():
    torch.manual_seed(0)
    logits, mask = torch.randn(4, 6, 9, dtype=F64), torch.rand(4, 6) < 0.6
    mask[:, 0] = True
    expected = [
        mean_entropy(row, keep)
        for row, keep in zip(compute_entropy(logits).numpy(), mask.numpy(), strict=True)
    ]
    logits[~mask] = math.nan
    assert compute_entropy(logits, mask.int()).tolist() == pytest.approx(expected, rel=1e-12)


def test_weights_are_those_of_the_formula_and_their_gradient_too():
    log_prob = torch.tensor([[-1.0, -2.0, -0.5]], dtype=F64, requires_grad=True)
    past = torch.tensor([[-1.0, -1.0, math.nan]], dtype=F64)
    weights = compute_importance_weights(log_prob, past, torch.tensor([[1, 1, 0]]))
    w = np.exp([0.0, -1.0])
    assert weights.tolist()[0] == pytest.approx([*(w / (w + 0.1)), 0], rel=1e-12)
    weights.sum().backward()
    assert log_prob.grad.tolist()[0] == pytest.approx([*(0.1 * w / (w + 0.1) ** 2), 0], rel=1e-12)
    plain = compute_importance_weights(
        log_prob[:, :2], past[:, :2], settings=LossSettings(off_policy_reshape="no_reshape")
    )
    assert plain.tolist()[0] == pytest.approx(w.tolist(), rel=1e-12)


@pytest.mark.parametrize("use_std", [False, True])
def test_advantages_are_verls(use_std):
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    torch.manual_seed(1)
    group = np.array(list("aabbbaccccde"))
    rewards = torch.cat([torch.randint(0, 2, (10,)), torch.tensor([1, 0])]).double()
    mask = torch.ones(12, 1, dtype=F64)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        rewards[:, None].clone(), mask, group, norm_adv_by_std_in_grpo=use_std
    )
    ours = group_advantages(rewards, group, use_std)
    assert torch.allclose(ours[:10], theirs[:10, 0], rtol=1e-12, atol=0)
    assert torch.allclose(ours[10:], theirs[10:, 0], rtol=1e-7, atol=0)  # verl: in float32


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=20
    )
)
def test_advantages_of_a_group_are_to_its_mean_whatever_its_order(rows):
    group, rewards = (
        torch.tensor([g for g, _ in rows]),
        torch.tensor([r for _, r in rows], dtype=F64),
    )
    advantages = group_advantages(rewards, group)
    for key in set(group.tolist()):
        of = rewards[group == key]
        assert advantages[group == key].tolist() == pytest.approx(
            (of - of.mean() if len(of) > 1 else of).tolist(), abs=1e-12
        )
    assert group_advantages(rewards, group, use_std=True).isfinite().all()


def test_a_lone_row_has_its_reward():
    assert group_advantages(torch.tensor([1, 0, 1]), ["a", "b", "b"]).tolist() == [1, -0.5, 0.5]
    assert group_advantages(torch.tensor([1.0]), ["a"], use_std=True).tolist() == pytest.approx([1])


def test_the_loss_is_the_trainers_over_the_rows():
    rollouts, rewards = batch()
    loss = compute_grpo_loss(rollouts, rewards)
    advantages = torch.tensor([2 / 3, -1 / 3, -1 / 3, 1 / 3, 1 / 3, -2 / 3], dtype=F64)[
        :, None
    ].expand(6, 5)
    tensors = [rollouts[name] for name in ("log_prob", "old_log_prob")]
    theirs, _ = mixed_policy_loss(
        *tensors, advantages, rollouts["is_replayed"], rollouts["response_mask"]
    )
    (ours_grad,), (theirs_grad,) = (
        torch.autograd.grad(each, rollouts["log_prob"]) for each in (6 * loss, theirs)
    )
    assert 6 * loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert torch.allclose(ours_grad, theirs_grad, rtol=1e-6, atol=1e-12)
    assert loss.metrics["replayed_ratio_max"] > 0
    assert compute_grpo_loss(rollouts, rewards, length=10).item() == pytest.approx(
        loss.item() / 2, rel=1e-12
    )


def test_given_weights_stand_in_replayed_rows_alone():
    rollouts, rewards = batch()
    log_prob, old, mask = (rollouts[name] for name in ("log_prob", "old_log_prob", "response_mask"))
    weights = compute_importance_weights(log_prob, old, mask)
    without = compute_grpo_loss(rollouts, rewards)
    given_ = compute_grpo_loss(rollouts, rewards, weights)
    grads = [
        torch.autograd.grad(loss, log_prob, retain_graph=True)[0] for loss in (without, given_)
    ]
    assert given_.item() == pytest.approx(without.item(), rel=1e-12) and torch.allclose(
        *grads, rtol=1e-12, atol=0
    )
    doubled = compute_grpo_loss(rollouts, rewards, 2 * weights)
    (moved,) = torch.autograd.grad(doubled, log_prob)
    factor = torch.where(rollouts["is_replayed"], 2.0, 1.0)[:, None]
    assert torch.allclose(moved, factor * grads[0], rtol=1e-12, atol=0)


def test_without_replayed_rows_it_is_grpo():
    rollouts, rewards = batch()
    fresh = {name: value for name, value in rollouts.items() if name != "is_replayed"}
    loss = compute_grpo_loss(fresh, rewards)
    log_ratio = (rollouts["log_prob"] - rollouts["old_log_prob"]) * rollouts["response_mask"]
    advantages = (
        group_advantages(rewards.double(), rollouts["group"])[:, None] * rollouts["response_mask"]
    )
    assert loss.item() == pytest.approx(-(log_ratio.exp() * advantages).sum().item() / 30, rel=1e-6)
    assert loss.metrics["replayed_loss"] == 0


def changed(**changes):
    rollouts, rewards = batch()
    return {
        name: value for name, value in (rollouts | changes).items() if value is not None
    }, rewards


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: compute_entropy(torch.zeros(2, 3, 4), torch.ones(2, 4)),
            r"response_mask has shape \(2, 4\) for",
        ),
        (
            lambda: compute_entropy(torch.zeros(2, 3, 4), torch.eye(2, 3) * 0),
            "response_mask leaves no token of row 0",
        ),
        (
            lambda: compute_importance_weights(torch.zeros(2, 3), torch.zeros(2, 4)),
            "must be .rows, tokens. of one shape",
        ),
        (
            lambda: group_advantages(torch.zeros(3), [1, 2]),
            r"group has 2 entries for rewards of shape \(3,\)",
        ),
        (
            lambda: group_advantages(torch.tensor([0, math.nan]), [1, 1]),
            r"rewards\[1\]: must be a finite number",
        ),
        (lambda: compute_grpo_loss(*changed(group=None)), "rollouts without 'group'"),
        (
            lambda: compute_grpo_loss(*changed(mask=1)),
            r"rollouts\['mask'\]: must be one of log_prob, ",
        ),
        (
            lambda: compute_grpo_loss(changed()[0], torch.zeros(5)),
            "rewards has 5 entries for 6 rows",
        ),
        (
            lambda: compute_grpo_loss(*changed(), torch.zeros(6, 4)),
            r"importance_weights has shape \(6, 4\)",
        ),
        (
            lambda: compute_grpo_loss(*changed(), torch.zeros(6, 5)),
            "importance_weights has no gradient",
        ),
    ],
)
def test_what_does_not_fit_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
