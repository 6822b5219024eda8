"""A step of our trainer with past groups and a rescued one, by verl's own functions but for
rollouts and actor.
"""

import dataclasses

import numpy as np
import pytest
import torch
import transfer_queue as tq
from queue_trainer import STEP, WHOLE_STEP, K, make_ready, make_trainer, pass_batch, sample
from tensordict import TensorDict

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.mix_trainer_experience import (
    ExperienceMixPPOTrainer,
    ExperienceMixPPOTrainerSeparateAsync,
)
from exgrpo.on_verl import queue

PAST = {"q7": (1.0, 0.0, 0.0, 0.0), "q8": (0.0, 1.0, 1.0, 0.0)}
KEYS = [
    *WHOLE_STEP,
    "actor_rollout_ref.actor.policy_loss.off_policy_loss=topr",
    "trainer.exp_unit=group",
    "trainer.save_freq=1",  # only then is computed what replayed rows weigh
]


def stored(question, rewards):
    """The model's log-prob of a token is minus its id: half a nat above what is recorded here."""
    rollouts = [
        Trajectory([20, 21 + i], [-20.5, -21.5 - i], 1, 0.5, reward=reward)
        for i, reward in enumerate(rewards)
    ]
    return StoredGroup(question, 1, tuple(rollouts), np.array([3, 4], np.int32))


@pytest.fixture(
    params=[(None, ExperienceMixPPOTrainer), (0.3, ExperienceMixPPOTrainer)],
    ids=["no look", "drift"],
)
def stepped(training_queue, request):
    """After a step on q0, which has a success, q1, which has none but in the pool, and two past
    groups.
    """
    drift, trainer_class = request.param
    trainer = make_trainer(trainer_class, 9, set(), *KEYS)
    trainer.experience = ExperienceConfig(
        rollout_n=K, exp_unit="group", exp_rescue=True, exp_max_drift=drift
    )
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    trainer.replay.groups.hold([stored(question, rewards) for question, rewards in PAST.items()])
    trainer.replay.pool.observe(RolloutGroup("q1", K, (Trajectory([5, 6], [-5.5, -6.5], step=1),)))
    make_ready(trainer)
    trainer.agent_loop_manager.rewards = {"q1": 0.0}
    trainer._add_batch_to_generate()
    metrics = {}
    batch = pass_batch(trainer, sample(trainer), metrics)
    return trainer, batch, metrics


class Reference:
    """Overwrites the log-probs in the queue, as verl's pass of the reference does."""

    def compute_ref_log_prob(self, batch):
        rows = [torch.full((tag["seq_len"],), -99.0) for tag in batch.tags]
        fields = {"log_probs": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
        return queue.write(batch.keys, batch.partition_id, TensorDict(fields, len(rows)))


def test_the_pool_has_read_what_verl_overwrites(stepped):
    """The fixture's rows pass again; the reference's pass and rollout correction come after the
    observation.
    """
    trainer, batch, _ = stepped
    trainer.ref_in_actor, trainer.ref_policy_wg = False, Reference()
    batch = trainer._compute_old_log_prob(batch, metrics := {})
    batch = trainer._compute_ref_log_prob(batch, {})
    assert metrics["experience/stored_group_drift"] == pytest.approx(0.25)
    assert metrics["experience/generated_tokens"] == metrics["experience/replayed_groups"] == 0, (
        "of this step alone"
    )
    assert set(read(batch, "ref_log_prob")[batch.keys[0]]) == {-99.0}


def past(trainer):
    """The records of the past groups of the batch."""
    return [group for group in trainer.replayed if group.stored is not None]


def read(batch, field):
    rows = queue.read(batch.keys, batch.partition_id, [field])[field].unbind()
    return dict(zip(batch.keys, (row.tolist() for row in rows), strict=True))


def test_a_step_trains_on_fresh_past_and_rescued_rows_and_stores_the_fresh_group_alone(stepped):
    trainer, batch, metrics = stepped
    uid_of = {question: uid for uid, question in trainer.agent_loop_manager.asked.items()}
    assert set(uid_of) == {"q0", "q1"} and len(batch) == 4 * K
    responses, scores, old, advantages = (
        read(batch, name) for name in ("responses", "rm_scores", "old_log_probs", "advantages")
    )
    rescued = f"{uid_of['q1']}_{K - 1}_0"
    assert (responses[rescued], scores[rescued], old[rescued]) == ([5, 6], [0, 1], [-5.5, -6.5])
    by_hand = {uid_of["q0"]: (1, 0, 0, 0), uid_of["q1"]: (0, 0, 0, 1)}
    for group in past(trainer):
        by_hand[group.uid] = PAST[group.question]
        for key, each in group.rows.items():
            assert (responses[key], old[key]) == (each.tokens.tolist(), each.log_probs.tolist())
    for uid, rewards in by_hand.items():
        for session, reward in enumerate(rewards):
            expected = [reward - np.mean(rewards)] * len(responses[f"{uid}_{session}_0"])
            assert advantages[f"{uid}_{session}_0"] == pytest.approx(expected)
    counts = {
        "stored_groups": 2,
        "replayed_groups": 1,
        "generated_tokens": 28,
        "fresh_score": 1 / 8,
        "stored_group_age": 2,
        "fresh_staleness": 0,
        "fresh_staleness_max": 0,
    }
    assert {name: metrics[f"experience/{name}"] for name in counts} == counts
    assert [(each.question, each.step) for each in trainer.replay.groups] == [
        ("q7", 1),
        ("q8", 1),
        ("q0", STEP),
    ]
    assert [*trainer.replay.groups][-1].prompt.tolist() == [7, 8, 9]
    state = trainer.replay.pool.snapshot().state
    assert (
        dict(zip(state.questions, state.buckets, strict=True))["q1"] == 1
    )  # where it was: all four failed
    replays = {row.question: row for row in trainer.replay.pool.replays}
    assert set(replays) == {"q1", "q7", "q8"} and replays["q7"].effect.ratio_mean == pytest.approx(
        np.exp(0.5)
    )


def test_without_recorded_log_probs_replayed_rows_are_no_mismatch_of_rollout_and_actor(stepped):
    """verl's metrics of rollout correction compare the two."""
    trainer, batch, _ = stepped
    trainer.experience = dataclasses.replace(trainer.experience, exp_is_correct=False)
    batch = trainer._compute_old_log_prob(batch, {})
    old, sampled = read(batch, "old_log_probs"), read(batch, "rollout_log_probs")
    assert all(old[key] == sampled[key] for group in past(trainer) for key in group.rows)
    assert old[batch.keys[0]] != sampled[batch.keys[0]]  # a fresh row keeps its own


def test_a_look_is_a_pass_of_its_own_and_verls_pass_is_over_all_rows(stepped):
    trainer, _, _ = stepped
    calls = [len(rows) for rows in trainer.actor_rollout_wg.calls]
    looks = (
        [] if trainer.experience.exp_max_drift is None else [1, 2 * K]
    )  # the success that rescues, the past groups
    assert calls == [*looks, 4 * K]


def test_past_groups_take_the_place_of_fresh_ones_without_an_advantage(training_queue):
    """q1 fails, q2 is solved, q0 and q3 are lively; of the dead rows the pool learns, and the queue
    is rid.
    """
    keys = [*KEYS, "trainer.exp_place=dead", "trainer.exp_retirement=all_solved"]
    trainer = make_trainer(ExperienceMixPPOTrainer, 9, set(), *keys)
    trainer.experience = ExperienceConfig(rollout_n=K, exp_unit="group", exp_place="dead")
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    trainer.replay.groups.hold([stored(question, rewards) for question, rewards in PAST.items()])
    make_ready(trainer)
    trainer.agent_loop_manager.rewards = {"q1": 0.0, "q2": 1.0}
    trainer.replay.mixing = False  # as when prompts are submitted ahead, before mixing begins
    trainer._add_batch_to_generate()
    trainer.replay.mixing = True
    batch = pass_batch(trainer, sample(trainer), metrics := {})
    asked = trainer.agent_loop_manager.asked
    assert set(asked.values()) == {"q0", "q1", "q2", "q3"}, "all of the step are asked"
    fresh = {asked[uid] for uid in {key.split("_")[0] for key in batch.keys} & set(asked)}
    assert fresh == {"q0", "q3"} and len(batch) == 4 * K and trainer.mixed
    assert set(tq.kv_list("train")["train"]) == set(batch.keys)
    assert {each.question for each in past(trainer)} == set(PAST)
    scores, advantages = read(batch, "rm_scores"), read(batch, "advantages")
    for group in past(trainer):
        rewards = PAST[group.question]
        for session, reward in enumerate(rewards):
            key = f"{group.uid}_{session}_0"
            assert sum(scores[key]) == reward
            assert advantages[key] == pytest.approx(
                [reward - np.mean(rewards)] * len(advantages[key])
            )
    counts = {
        "stored_groups": 2,
        "fresh_score": 6 / 16,
        "refused": 4,
        "retired_questions": 1,
        "generated_tokens": 56,
    }
    assert {name: metrics[f"experience/{name}"] for name in counts} == counts
    assert trainer.replay.pool.retired == ["q2"]
    assert [each.question for each in trainer.replay.groups][2:] == ["q0", "q3"]


def test_a_past_group_stands_in_once_in_a_step_of_several_updates(training_queue):
    """q0 and q2 fail; of the two past groups one is of a fresh question of the step, in whichever
    update it is.
    """
    mode, twice = (
        ExperienceMixPPOTrainerSeparateAsync,
        "trainer.v1.separate_async.parameter_sync_step=2",
    )
    trainer = make_trainer(mode, 9, set(), *KEYS, "trainer.exp_place=dead", twice)
    trainer.experience = ExperienceConfig(rollout_n=K, exp_unit="group", exp_place="dead")
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    trainer.replay.groups.hold([stored("q8", PAST["q8"]), stored("q3", PAST["q7"])])
    make_ready(trainer)
    trainer.agent_loop_manager.rewards = {"q0": 0.0, "q2": 0.0}
    trainer._add_batch_to_generate()
    for name in ("save_model_to_cpu", "restore_model_from_cpu", "clear_cpu_model"):
        setattr(trainer.actor_rollout_wg, name, lambda step: None)
    replayed = 0
    for trainer.local_trigger_step in range(2):
        batch, _ = trainer.replay_buffer.sample(
            global_steps=STEP, partition_id="train", batch_size=2
        )
        batch.extra_info["temperature"] = 1.0
        batch = pass_batch(trainer, batch, {})
        asked = trainer.agent_loop_manager.asked
        replayed += len({key.split("_")[0] for key in batch.keys} - set(asked))
    assert replayed == 1


@pytest.mark.parametrize("drift", [None, 0.2])
def test_a_dead_group_stays_where_no_past_one_may_take_its_place(training_queue, drift):
    """The one past group is too far away, or there is none."""
    trainer = make_trainer(ExperienceMixPPOTrainer, 9, set(), *KEYS, "trainer.exp_place=dead")
    trainer.experience = ExperienceConfig(
        rollout_n=K, exp_unit="group", exp_place="dead", exp_max_drift=drift
    )
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    trainer.replay.groups.hold([] if drift is None else [stored("q7", PAST["q7"])])
    make_ready(trainer)
    trainer.agent_loop_manager.rewards = {"q1": 0.0}
    trainer._add_batch_to_generate()
    batch = pass_batch(trainer, sample(trainer), metrics := {})
    assert {key.split("_")[0] for key in batch.keys} == set(trainer.agent_loop_manager.asked)
    assert metrics["experience/stored_groups"] == 0 and metrics["experience/fresh_score"] == 3 / 16
    assert {each.question for each in trainer.replay.groups} == {"q0", "q2", "q3"}


def test_past_groups_are_drawn_by_headroom_until_the_budget_is_full(training_queue):
    keys = [*KEYS, "trainer.experience_ratio=0.5", "trainer.exp_max_drift=0.1"]
    keys += ["trainer.exp_group_choice=headroom"]
    trainer = make_trainer(ExperienceMixPPOTrainer, 9, set(), *keys)
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    groups = [stored(question, (1.0, 0.0, 0.0, 0.0)) for question in ("q7", "q8")]
    for question in ("q5", "q6"):  # as the model sees them today
        rollouts = [
            dataclasses.replace(one, log_probs=-one.tokens.astype(np.float32))
            for one in stored(question, (1.0, 1.0, 0.0, 0.0)).rollouts
        ]
        prompt = np.array([3, 4], np.int32)
        groups.append(StoredGroup(question, 1, tuple(rollouts), prompt))
    trainer.replay.groups.hold(groups)
    make_ready(trainer)
    trainer._add_batch_to_generate()
    drawn = {group.question for group in trainer.waiting}
    batch = pass_batch(trainer, sample(trainer), metrics := {})
    assert {group.question for group in past(trainer)} == {"q5", "q6"}
    assert len(batch) == 4 * K and metrics["experience/stored_group_drift"] == 0
    gone = {"q7", "q8"} - {group.question for group in trainer.replay.groups}
    assert gone and gone >= drawn - {"q5", "q6"}
