"""Steps in which questions fail, leave or are filtered, by verl's own functions but for rollouts
and actor.
"""

import numpy as np
import pytest
import torch
from queue_trainer import (
    FILTERED,
    WHOLE_STEP,
    K,
    filters_by_reward,
    make_ready,
    make_trainer,
    pass_batch,
    sample,
)

from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.mix_trainer_experience import (
    ExperienceMixPPOTrainer,
    ExperienceMixPPOTrainerSeparateAsync,
)
from exgrpo.on_verl import queue
from exgrpo.on_verl.correct import FRESH, REPLAYED


@pytest.fixture
def make(training_queue):
    """A trainer of twelve questions that is ready for a whole step, in which q0 is replayed."""

    def of(*overrides, failing=(), trainer_class=ExperienceMixPPOTrainer):
        trainer = make_trainer(trainer_class, 12, set(failing), *WHOLE_STEP, *overrides)
        make_ready(trainer)
        return trainer

    return of


@filters_by_reward
def test_what_the_filter_left_out_is_observed_with_the_step(make):
    trainer = make(*FILTERED)
    trainer.agent_loop_manager.rewards = {"q1": 1.0}
    trainer._add_batch_to_generate()
    pass_batch(trainer, sample(trainer), {})
    assert trainer.replay.pool.retired == ["q1"]


def two_alone(successes, rollout_n, mean, sigma):
    """Questions with two successes are drawn, others never."""
    return np.where(successes == 2, 0.0, -np.inf)


def test_what_replayed_rows_weigh_is_known_of_every_update_of_a_step(make):
    """Two updates, the first with q0, the second with q9; the model's log-prob of token 1 is -1, as
    recorded.
    """
    steps = "trainer.v1.separate_async.parameter_sync_step=2"
    rule = f"trainer.exp_bucket_manager={__file__}:two_alone"
    saves = "trainer.save_freq=1"  # else nobody could look at it, and it is not computed
    trainer = make(steps, saves, rule, trainer_class=ExperienceMixPPOTrainerSeparateAsync)
    for name in ("save_model_to_cpu", "restore_model_from_cpu", "clear_cpu_model"):
        setattr(trainer.actor_rollout_wg, name, lambda number: None)
    trainer.replay.pool.file("q9", 1, Trajectory([1], [-1.0], step=1))
    for update, (drawn, other) in enumerate([("q0", "q9"), ("q9", "q0")]):
        trainer.local_trigger_step = update
        trainer.replay.pool.file(drawn, 2)
        trainer.replay.pool.file(other, 1)  # of which nothing is drawn
        trainer._add_prompts_to_generate(4)
        pass_batch(trainer, sample(trainer), {})
    effects = {row.question: row.effect.ratio_mean for row in trainer.replay.pool.replays}
    assert effects == pytest.approx({"q0": 1.0, "q9": 1.0})


def test_no_row_leaves_the_log_prob_pass_without_its_phase(make):
    trainer = make()
    trainer._add_batch_to_generate()
    batch = trainer._balance_batch(sample(trainer), {})
    batch = trainer._compute_old_log_prob(batch, {})
    rows = queue.read(batch.keys, batch.partition_id, ["rollout_is_weights"])[
        "rollout_is_weights"
    ].unbind()
    assert sorted(set(torch.cat(list(rows)).tolist())) == [FRESH, REPLAYED]


def test_an_agent_loop_with_several_outputs_a_session_is_refused_before_anything_is_trained(make):
    trainer = make()
    trainer._add_batch_to_generate()
    batch = sample(trainer)
    batch.keys[1] = batch.keys[0][:-1] + "1"
    with pytest.raises(
        RuntimeError, match="_1: the agent loop returned several outputs of one session"
    ):
        trainer._balance_batch(batch, {})


def test_after_a_step_no_question_of_it_is_out_though_its_rollouts_all_failed(make):
    trainer = make(failing=["q0"])
    trainer._add_batch_to_generate()
    assert "q0" in trainer.in_flight.questions
    batch = pass_batch(trainer, sample(trainer), {})
    assert len(batch) == 4 * K and not trainer.in_flight.questions


def test_the_group_of_a_question_that_has_left_the_pool_stays_a_row_short(make):
    trainer = make()
    trainer._add_batch_to_generate()
    solved = tuple(Trajectory([token], [-1.0], step=1) for token in range(K))
    trainer.replay.pool.observe(
        RolloutGroup("q0", K, solved)
    )  # by all rollouts of another step: it is retired
    batch = pass_batch(trainer, sample(trainer), metrics := {})
    (uid,) = [uid for uid, question in trainer.agent_loop_manager.asked.items() if question == "q0"]
    assert [key.split("_")[0] for key in batch.keys].count(uid) == K - 1 and metrics[
        "experience/replayed_groups"
    ] == 0
