"""Rehearsal: stored successes beside the groups, learned by their likelihood alone."""

import json
import math

import numpy as np
import pytest
import torch

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory, compute_grpo_loss
from exgrpo.loss_settings import LossSettings
from exgrpo.mix_core_alg import mixed_token_losses
from exgrpo.on_verl import mix_actor
from exgrpo.on_verl.correct import FRESH, REPLAYED

KEEPS_FIRST = {
    "exp_place": "beside",
    "exp_retirement": "never",
    "exp_eviction": "newest",
    "experience_max_per_question": 1,
    "experience_rbound": 2,
    "exp_bucket_manager": False,
}
LIKELIHOOD = LossSettings(off_policy_loss="likelihood", likelihood_weight=0.5)


def success(step, token=1):
    return Trajectory([token, 2], [-1.0, -2.0], step, 0.5)


def replay_of(questions, **keys):
    config = ExperienceConfig(2, experience_start_sratio=0, **{**KEEPS_FIRST, **keys})
    return ExperienceReplay(config, list(questions))


def learn(replay, step, questions, token=1):
    replay.observe(step, [RolloutGroup(name, 2, (success(step, token),)) for name in questions], {})


def test_successes_stand_beside_the_groups_k_for_a_question():
    replay, names = replay_of("abcdefgh"), iter("abcdefgh" * 9)
    learn(replay, 1, "abcde")
    drawn = replay.draw(2, 4, lambda: (next(names), False))
    assert len(drawn.rehearsed) == 4 and set(drawn.rehearsed) < set("abcde")
    assert drawn.fresh == ["a", "b"], "what is rehearsed may be asked as well"
    assert not drawn.replayed and not drawn.stored
    choice = replay.rehearse(drawn.rehearsed, None)
    assert list(choice.trajectories) == list(drawn.rehearsed)
    assert {group.odds for group in choice.groups} == {(1, 1.0, 5, 4)}
    replay.observe(2, [], {})
    assert len(replay.pool.replays) == 4
    assert not replay.draw(3, 4, lambda: (next(names), False), (), ahead=True).rehearsed


def test_fewer_than_k_questions_fill_no_place():
    replay, names = replay_of("abcd"), iter("abcd" * 9)
    learn(replay, 1, "a")
    drawn = replay.draw(2, 4, lambda: (next(names), False))
    assert not drawn.rehearsed and len(drawn.fresh) == 4


def test_the_first_success_of_a_question_is_kept_for_ever_and_all_are_drawn_alike():
    replay = replay_of("abcdef")
    for step in range(1, 9):
        learn(replay, step, "abcdef", token=step)
    replay.observe(9, [RolloutGroup("a", 2, (success(9, 9), success(9, 10)))], {})
    assert replay.pool.retired == []
    assert {one.step for name in "abcdef" for one in replay.pool.candidates(name)} == {1}
    counts, names = dict.fromkeys("abcdef", 0), iter("abcdef" * 999)
    for step in range(10, 910):
        for name in replay.draw(step, 2, lambda: (next(names), False), ()).rehearsed:
            counts[name] += 1
    assert np.array([*counts.values()]) / 900 == pytest.approx(1 / 3, abs=0.05)


def test_resumed_it_draws_what_it_would_have_drawn():
    drawn = []
    for resumes in (False, True):
        replay, names = replay_of("abcdef"), iter("abcdef" * 99)
        learn(replay, 1, "abcdef")
        mine = []
        for step in range(2, 20):
            if resumes and step == 9:
                state = json.loads(json.dumps(replay.state()))
                replay = ExperienceReplay(replay.config, list("abcdef"), replay.pool)
                replay.restore(state)
            drawn_now = replay.draw(step, 4, lambda names=names: (next(names), False))
            mine.append(dict(drawn_now.rehearsed))
        drawn.append(mine)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    "keys", [{"exp_unit": "group"}, {"exp_rescue": True}, {"exp_max_drift": 0.1}]
)
def test_what_does_not_go_with_it_is_named(keys):
    with pytest.raises(ValueError, match=r"^trainer.exp_place=beside: must be share, unless"):
        ExperienceConfig(2, exp_place="beside", **keys)
    with pytest.raises(ValueError, match=r"below 1 with trainer.exp_place=beside: new groups"):
        ExperienceConfig(2, exp_place="beside", experience_ratio=1)
    with pytest.raises(ValueError, match=r"^policy_loss.likelihood_weight=-1: must be a number"):
        LossSettings(likelihood_weight=-1)


# -- the loss -----------------------------------------------------------------------------------


def test_a_rows_loss_is_its_mean_negative_log_likelihood_whatever_author_and_advantage():
    log_prob = torch.tensor([[-0.5, -1.5, -9.0], [-0.2, -0.4, -0.9]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    alone = torch.tensor([True, False])
    for old, advantage in ((-7.0, 3.0), (0.0, -0.5)):
        advantages = torch.full_like(log_prob, advantage)
        old_log_prob = torch.full_like(log_prob, old)
        losses, _ = mixed_token_losses(
            log_prob, old_log_prob, advantages, alone, mask, settings=LIKELIHOOD
        )
        assert losses[0].tolist() == [0.25, 0.75, 0.0], "golden"
        ratios = torch.exp(log_prob[1] - old_log_prob[1])
        torch.testing.assert_close(losses[1], -ratios * advantage)


def test_its_weight_stands_beside_the_groups_loss():
    log_prob = torch.tensor([[-0.5, -1.5], [-1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    batch = {
        "log_prob": log_prob,
        "old_log_prob": log_prob.detach(),
        "response_mask": torch.tensor([[1, 1], [1, 0], [1, 0]]),
        "group": ["alone", "q", "q"],
        "is_replayed": torch.tensor([True, False, False]),
    }
    loss = compute_grpo_loss(batch, torch.tensor([1.0, 1, 0]), length=8, settings=LIKELIHOOD)
    loss.backward()
    # .5 of its weight, 3 rows, 2 tokens; A = +-.5, 3 rows, length 8
    fresh = 0.5 / (3 * 8)
    expected = [[-0.5 / 3 / 2] * 2, [-fresh, 0], [fresh, 0]]
    torch.testing.assert_close(log_prob.grad, torch.tensor(expected))
    assert float(loss.detach()) == pytest.approx(0.5 * 1.0 / 3)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum-norm", "seq-mean-token-mean"])
@pytest.mark.parametrize("fresh_loss", ["exgrpo", "vanilla"])
def test_in_verls_loss_its_weight_is_that_of_a_row_in_any_mode_of_aggregation(mode, fresh_loss):
    def loss_of(weight):
        log_prob = torch.log(torch.tensor([[0.5, 0.25], [0.5, 0.5], [0.5, 0.5]])).requires_grad_()
        config = actor(weight, fresh_loss)
        code = torch.tensor([[REPLAYED] * 2, [FRESH] * 2, [FRESH] * 2])
        mask = torch.tensor([[1, 1], [1, 1], [1, 0]])
        advantages = torch.tensor([[9.0] * 2, [0.5] * 2, [-0.5] * 2])
        given = log_prob.detach(), log_prob, advantages, mask, mode, config, code
        value, _ = mix_actor.compute_policy_loss_exgrpo(*given)
        value.backward()
        return float(value.detach()), log_prob.grad

    without, grad_without = loss_of(0.0)
    value, grad = loss_of(2.0)
    assert grad_without[0].tolist() == [0, 0], "nothing of it is in the other rows' loss"
    mean = (math.log(2) + math.log(4)) / 2
    assert value - without == pytest.approx(2.0 * mean / 4)  # four rows in the mini-batch
    torch.testing.assert_close((grad - grad_without)[0], torch.full((2,), -2.0 / 4 / 2))
    torch.testing.assert_close(grad[1:], grad_without[1:])


def actor(weight, fresh_loss):
    """What verl hands a policy loss as its configuration."""
    settings = mix_actor.MixPolicyLossConfig(
        loss_mode="exgrpo",
        fresh_loss_mode=fresh_loss,
        off_policy_loss="likelihood",
        likelihood_weight=weight,
    )
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=1,
        ppo_mini_batch_size=2,
        policy_loss=settings,
    )
    whole = {"dp_size": 1, "batch_num_tokens": 5, "global_batch_size": 4, "loss_scale_factor": 2}
    config.global_batch_info.update(whole)
    return config
