"""A step of our trainer with rehearsed successes, by verl's own functions but for rollouts and
actor.
"""

import pytest
import torch
from queue_trainer import WHOLE_STEP, K, make_ready, make_trainer, pass_batch, sample

from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.mix_trainer_experience import (
    ExperienceMixPPOTrainer,
    ExperienceMixPPOTrainerColocateAsync,
)
from exgrpo.on_verl import queue
from exgrpo.on_verl.correct import FRESH, REPLAYED

KEYS = [
    *WHOLE_STEP,
    "actor_rollout_ref.actor.policy_loss.off_policy_loss=likelihood",
    "trainer.exp_place=beside",
    "trainer.save_freq=1",
]


@pytest.fixture(params=[ExperienceMixPPOTrainer, ExperienceMixPPOTrainerColocateAsync])
def stepped(training_queue, request):
    """After a step of four places, one of them K stored successes."""
    trainer = make_trainer(request.param, 9, set(), *KEYS)
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    for number in range(1, 7):
        one = Trajectory([20, 20 + number], [-1.0, -2.0], 1, 0.5)
        trainer.replay.pool.observe(RolloutGroup(f"q{number}", K, (one,)))
    make_ready(trainer)
    trainer.rehearsal.prompt = lambda question: torch.tensor(
        [7, 8, 9]
    )  # of every row of this queue
    trainer._add_batch_to_generate()
    assert trainer.past_groups_now == 1
    prompts = 4 - trainer.past_groups_now
    batch, _ = trainer.replay_buffer.sample(
        global_steps=3, partition_id="train", batch_size=prompts
    )
    batch.extra_info["temperature"] = 1.0
    metrics = {}
    return trainer, pass_batch(trainer, batch, metrics), metrics


def read(batch, field):
    rows = queue.read(batch.keys, batch.partition_id, [field])[field].unbind()
    return dict(zip(batch.keys, (row.tolist() for row in rows), strict=True))


def test_k_successes_take_one_place_and_no_group_has_them(stepped):
    trainer, batch, metrics = stepped
    assert len(batch) == 4 * K and not trainer.rehearsal.waiting
    rehearsed = [key for key in batch.keys if "s" in key]
    assert len(rehearsed) == K and len({key.split("_")[0] for key in rehearsed}) == 1
    responses, codes, masks = (
        read(batch, name) for name in ("responses", "rollout_is_weights", "response_mask")
    )
    assert len({tuple(responses[key]) for key in rehearsed}) == K
    for key in batch.keys:
        code = REPLAYED if key in rehearsed else FRESH
        assert set(codes[key]) == {code} and set(masks[key]) == {1}
    records = {key: group for group in trainer.replayed for key in group.rows}
    assert set(records) == set(rehearsed)
    for key, group in records.items():
        assert responses[key] == group.rollouts[0].tokens.tolist() and group.odds.drawn == K
    advantages = read(batch, "advantages")
    assert sum(sum(advantages[key]) for key in rehearsed) == 0
    assert metrics["experience/replayed_groups"] == K
    assert metrics["experience/stored"] == 6 + 3, "the fresh groups alone are collected"


def test_a_prompt_that_the_agent_loop_renders_in_another_way_ends_the_run(training_queue):
    trainer = make_trainer(ExperienceMixPPOTrainer, 9, set(), *KEYS)
    for number in range(1, 7):
        one = Trajectory([20, 20 + number], [-1.0, -2.0], 1, 0.5)
        trainer.replay.pool.observe(RolloutGroup(f"q{number}", K, (one,)))
    make_ready(trainer)
    trainer.rehearsal.prompt = lambda question: torch.tensor([7, 8])
    trainer._add_batch_to_generate()
    with pytest.raises(RuntimeError, match=r"beside: the prompt of question 'q\d' is not the chat"):
        pass_batch(trainer, sample(trainer, 3), {})
