"""Whole past groups and rescued groups in a batch of verl, on a real queue: rows, advantages,
ratios, what is kept.
"""

import numpy as np
import pytest
import torch
import transfer_queue as tq
from composed import job
from queue_rows import Model, group, put, record, rollout, rows_of, trajectory
from queue_trainer import FILTERED, STEP, K, filters_by_reward, make_trainer
from tensordict import TensorDict
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.replayed_group import ReplayedGroup
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer
from exgrpo.on_verl import complete, correct, observe, queue, rescue, stored_groups
from exgrpo.on_verl.complete import CandidateScorer
from exgrpo.on_verl.correct import FRESH, REPLAYED, log_ratios
from exgrpo.on_verl.loss_shares import LossShares
from exgrpo.on_verl.observe import rollout_groups

REWARDS = (1.0, 0.75, 0.0, 0.0)
WHOLE = ExperienceConfig(rollout_n=K, exp_unit="group")


def past(question, *rewards, prompt=(3, 4, 5, 6), step=2):
    rollouts = [
        Trajectory([20 + i] * (1 + i), [-0.5 - i] * (1 + i), step, 0.5, None, reward)
        for i, reward in enumerate(rewards)
    ]
    return StoredGroup(question, step, tuple(rollouts), np.array(prompt, np.int32))


def row_of(question):
    return {
        "question_id": question,
        "raw_prompt": [{"role": "user", "content": f"text of {question}"}],
        "other": 1,
    }


def joined(partition, *admitted, fresh="ab"):
    batch = queue.in_order(put(partition, [row for uid in fresh for row in group(uid, 1, 0, 0, 0)]))
    groups = [ReplayedGroup.whole(each) for each in admitted]
    return groups, stored_groups.join(batch, groups, row_of)


def read(batch, field):
    values = queue.read(batch.keys, batch.partition_id, [field])[field].unbind()
    return {key: row.tolist() for key, row in zip(batch.keys, values, strict=True)}


def test_a_past_groups_rows_come_back_as_they_were_recorded(partition):
    stored, batch = joined(
        partition, past("x", *REWARDS), past("y", 0.0, 1.0, 1.0, 0.0, prompt=(9,))
    )
    assert [key for key in batch.keys if key.endswith("_0_0")] == [
        "a_0_0",
        "as00000_0_0",
        "b_0_0",
        "bs00001_0_0",
    ]
    assert len(batch) == 16 and list(rows_of(stored)) == [key for key in batch.keys if "s" in key]
    for uid, group_now in ((each.uid, each.stored) for each in stored):
        for session, was in enumerate(group_now.rollouts):
            row = tq.kv_batch_get(keys=[f"{uid}_{session}_0"], partition_id=partition)[0]
            prompt, tokens = group_now.prompt.tolist(), was.tokens.tolist()
            assert (row["prompts"].tolist(), row["responses"].tolist()) == (prompt, tokens)
            assert row["input_ids"].tolist() == prompt + tokens
            assert row["position_ids"].tolist() == list(range(len(prompt) + len(tokens)))
            assert row["response_mask"].tolist() == row["loss_mask"].tolist() == [1] * len(tokens)
            assert row["rm_scores"].tolist() == [0] * session + [was.reward]
            assert row["rollout_log_probs"].tolist() == was.log_probs.tolist()
            assert (row["uid"], row["session_id"], row["question_id"]) == (
                uid,
                session,
                group_now.question,
            )
            assert (
                row["raw_prompt"][0]["content"] == f"text of {group_now.question}"
                and "other" not in row
            )
            tag = batch.tags[batch.keys.index(f"{uid}_{session}_0")]
            assert (tag["prompt_len"], tag["seq_len"]) == (len(prompt), len(prompt) + len(tokens))
            assert tag["is_replayed"] and tag["max_global_steps"] == 1


def test_a_batch_without_past_groups_is_left_as_it_is(partition):
    stored, batch = joined(partition)
    assert len(batch) == 8 and stored == []


def test_more_past_groups_than_fresh_ones_are_spread_among_them(partition):
    _, batch = joined(partition, past("x", 1, 0), past("y", 1, 0), past("z", 1, 0))
    assert list(dict.fromkeys(key.split("_")[0] for key in batch.keys)) == [
        "a",
        "as00000",
        "as00001",
        "b",
        "bs00002",
    ]


@pytest.mark.parametrize("std", [False, True])
def test_verls_advantages_of_a_past_group_are_those_of_its_stored_rewards(partition, std):
    stored, batch = joined(partition, past("x", *REWARDS))
    put_log_probs(batch, 0.25)
    correct.mark(batch, mixed=True)
    correct.put_recorded(batch, rows_of(stored), WHOLE)
    trainer = object.__new__(ExperienceMixPPOTrainer)
    trainer.config = job(
        f"actor_rollout_ref.rollout.n={K}", f"algorithm.norm_adv_by_std_in_grpo={std}"
    )
    trainer.experience = ExperienceConfig(rollout_n=K, exp_unit="group")
    trainer._compute_advantage(batch, {})
    found = read(batch, "advantages")
    by_hand = np.array(REWARDS) - np.mean(REWARDS)
    by_hand /= np.std(REWARDS, ddof=1) + 1e-6 if std else 1
    for session, expected in enumerate(by_hand):
        assert found[f"as00000_{session}_0"] == pytest.approx([expected] * (1 + session), abs=1e-6)
    of_fresh = np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-6 if std else 1)
    for uid in "ab":
        assert [found[f"{uid}_{i}_0"][0] for i in range(K)] == pytest.approx(
            of_fresh.tolist(), abs=1e-6
        )
    assert {key: set(row) for key, row in read(batch, "rollout_is_weights").items()} == {
        key: {REPLAYED if "s" in key else FRESH} for key in batch.keys
    }


def put_log_probs(batch, shift):
    """As the actor's pass and verl write them: the recorded ones plus `shift` for past rows."""
    data = queue.read(batch.keys, batch.partition_id, ["rollout_log_probs"])[
        "rollout_log_probs"
    ].unbind()
    now = [row + shift for row in data]
    ahead = [
        torch.cat([torch.zeros(2), row, torch.zeros(1)]) for row in now
    ]  # after a prompt of three tokens
    rows = {
        "old_log_probs": now,
        "log_probs": ahead,
        "entropy": [torch.ones_like(row) for row in data],
    }
    fields = {
        name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
        for name, values in rows.items()
    }
    queue.write(batch.keys, batch.partition_id, TensorDict(fields, len(batch)))
    return observe.scored_rows(batch, False, prompts=True)


def observed(stored, batch, step):
    current = correct.current_log_probs(batch, rows_of(stored))
    # as the checks before a run set it
    mode = "+actor_rollout_ref.actor.policy_loss.fresh_loss_mode=exgrpo"
    config = job(mode, "trainer.save_freq=1")
    LossShares.of_config(config).fill(stored, current, [])
    return stored_groups.metrics(stored, current, step), {
        each.question: each.effect for each in stored
    }


def test_the_denominators_are_the_recorded_log_probs_and_the_metrics_say_how_far_they_are(
    partition,
):
    stored, batch = joined(partition, past("x", *REWARDS), past("y", 1.0, 0.0, step=4))
    put_log_probs(batch, 0.5)
    metrics, effects = observed(stored, batch, step=6)
    assert metrics == pytest.approx(
        {
            "stored_groups": 2,
            "stored_group_age": 3,
            "stored_group_drift": 0.25,
            "stored_group_tokens": 13,
        }
    )
    padded = upsample_batch_to_divisible_size(
        batch, 16, eos_token_id=0
    )  # as verl does where a group was dropped
    put_log_probs(padded, 0.5)
    assert len(padded) == 16 and observed(stored, padded, step=6) == (metrics, effects)
    assert effects["x"].ratio_mean == pytest.approx(np.exp(0.5)) and effects[
        "x"
    ].group_mean == np.mean(REWARDS)
    ratios = log_ratios(rows_of(stored), correct.current_log_probs(batch, rows_of(stored)))
    assert np.concatenate([*ratios.values()]) == pytest.approx([0.5] * 13)
    correct.put_recorded(batch, rows_of(stored), WHOLE)
    old = read(batch, "old_log_probs")
    assert all(old[key] == rollout.log_probs.tolist() for key, rollout in rows_of(stored).items())
    assert old["a_1_0"] == [0.0] * 3  # a fresh row keeps its own


def test_fresh_groups_are_kept_whole_and_past_ones_are_not_observed_again(partition):
    _, batch = joined(partition, past("x", *REWARDS))
    fresh = observe.fresh_rows(batch, put_log_probs(batch, 0.0))
    groups = rollout_groups(fresh, [], step=5, vocab_size=100, config=WHOLE)
    assert [found.question for found in groups] == ["question of a", "question of b"]
    for found in groups:
        assert (found.size, len(found.successes), len(found.failures)) == (4, 1, 3)
        assert [each.reward for each in found.failures] == [0, 0, 0] and found.prompt.tolist() == [
            7,
            8,
            9,
        ]
        assert [each.tokens.tolist() for each in found.failures] == [[12] * 3, [13] * 4, [14] * 5]
    (plain, _) = rollout_groups(
        fresh, [], step=5, vocab_size=100, config=ExperienceConfig(rollout_n=K)
    )
    assert (plain.size, len(plain.successes), plain.failures) == (4, 1, ())


def test_a_failure_that_cannot_be_kept_keeps_its_group_from_being_stored(partition, caplog):
    rows = group("a", 1, -1, 0, 0)
    fresh = observe.fresh_rows(
        batch := put(partition, rows), observe.scored_rows(batch, False, prompts=True)
    )
    (found,) = rollout_groups(fresh, [], step=5, vocab_size=100, config=WHOLE)
    assert (
        len(found.failures) == 2
        and "question of a: a failure is not stored: reward=-1.0" in caplog.text
    )
    replay = ExperienceReplay(ExperienceConfig(rollout_n=K, exp_unit="group"), [])
    assert not replay.groups.add(found, 5)


def test_a_group_that_the_model_has_drifted_from_is_dropped_by_one_look(partition):
    """The model's log-prob of a token is minus its id: group x's ids match what is recorded, y's do
    not.
    """
    near = [Trajectory([2, 3], [-2.0, -3.0], 1, reward=float(i)) for i in range(2)]
    far = [Trajectory([2, 9], [-2.0, -3.0], 1, reward=float(i)) for i in range(2)]
    model = Model()
    prompts = {"x": (7,), "y": (8, 8)}
    drawn = [
        StoredGroup(name, 1, tuple(rollouts), np.array(prompts[name], np.int32))
        for name, rollouts in (("x", near), ("y", far))
    ]
    replay = ExperienceReplay(
        ExperienceConfig(rollout_n=K, exp_unit="group", exp_max_drift=0.1), []
    )
    replay.groups.hold(drawn)
    scorer = CandidateScorer(stored_groups.prompts_of(drawn), model.compute_log_prob, 1, 1, 1.0)
    admitted = replay.admit(drawn, scorer)
    assert (
        [each.question for each in admitted] == ["x"] == [each.question for each in replay.groups]
    )
    assert model.calls == [[[7, 2, 3], [7, 2, 3], [8, 8, 2, 9], [8, 8, 2, 9]]]


def test_for_past_groups_nothing_is_generated(training_queue):
    trainer = make_trainer(ExperienceMixPPOTrainer, 9, set())
    trainer.experience = ExperienceConfig(rollout_n=K, experience_ratio=0.5, exp_unit="group")
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    trainer.replay.groups.hold([past(f"q{i}", 1.0, 0.0, 0.0, 0.0) for i in range(3)])
    trainer._add_batch_to_generate()
    asked, drawn = trainer.agent_loop_manager.asked, [each.question for each in trainer.waiting]
    assert len(asked) == len(drawn) == 2 and not set(drawn) & set(asked.values())
    assert list(asked) == [f"000000{STEP}q0000{i}" for i in range(2)]
    batch, _ = trainer.replay_buffer.sample(
        global_steps=STEP, partition_id="train", batch_size=4 - len(drawn)
    )
    assert len(batch) == 2 * K
    trainer._add_prompts_to_generate(1)  # what replaces a failed group is fresh
    assert len(trainer.waiting) == 2 and list(asked)[2] == f"000000{STEP}q00002"


@filters_by_reward
def test_the_filter_refills_with_fresh_questions(training_queue):
    """Beside two past groups q0 is always right: it is filtered out, and its place is not waited
    for by past groups.
    """
    trainer = make_trainer(ExperienceMixPPOTrainer, 12, set(), *FILTERED)
    trainer.experience = ExperienceConfig(rollout_n=K, experience_ratio=0.5, exp_unit="group")
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    trainer.replay.groups.hold([past(f"q{i}", 1.0, 0.0, 0.0, 0.0) for i in (9, 10, 11)])
    trainer.agent_loop_manager.rewards = {"q0": 1.0}
    trainer._add_batch_to_generate()
    waited_for = 4 - len(trainer.waiting)
    batch, _ = trainer.replay_buffer.sample(
        global_steps=STEP, partition_id="train", batch_size=waited_for
    )
    asked = trainer.agent_loop_manager.asked
    trained = {asked[key.split("_")[0]] for key in batch.keys}
    assert waited_for == 2 == len(trained) == len(trainer.waiting) and "q0" not in trained
    assert not {each.question for each in trainer.waiting} & set(asked.values())
    assert [found.question for found in trainer.replay_buffer.take()] == ["q0"]


# -- rescue ----------------------------------------------------------------------------------------


def test_a_group_whose_rollouts_all_failed_gets_a_stored_success_in_the_place_of_its_last(
    partition,
):
    batch = queue.in_order(
        put(partition, group("a", 0, 0, 0, 0.5) + group("b", 0, 1, 0, 0) + group("c", 0, 0, 0))
    )
    assert rescue.failed(batch, ["a", "b", "c", "gone"], threshold=0.5) == ["a", "c"]
    assert (
        rescue.failed(batch, ["a"], threshold=0.4) == [] == rescue.failed(batch, [], threshold=0.5)
    )
    rescued = [record("a", trajectory(5, 6, 7)), record("c", trajectory(5))]
    siblings = complete.first_siblings(batch, {each.uid: each.question for each in rescued})
    batch = rescue.make_room(batch, rescued, session=K - 1)
    assert [each.displaced for each in rescued] == [0.5, None]  # group c was one short
    assert "a_3_0" not in batch.keys and len(batch) == 10
    assert set(tq.kv_list(partition)[partition]) == set(batch.keys)
    batch = queue.in_order(complete.inject(batch, rescued, siblings, session=K - 1))
    assert [key.split("_")[0] for key in batch.keys] == [uid for uid in "abc" for _ in range(K)]
    row = tq.kv_batch_get(keys=["a_3_0"], partition_id=partition)[0]
    assert row["responses"].tolist() == [5, 6, 7] and row["rm_scores"].tolist() == [0, 0, 1]
    rows = put_log_probs(batch, 0.0)
    groups = rollout_groups(
        observe.fresh_rows(batch, rows), rescued, 5, 100, ExperienceConfig(rollout_n=K)
    )
    assert [(found.size, found.solved, found.replayed) for found in groups] == [
        (4, 0, 0),
        (4, 1, 0),
        (3, 0, 1),
    ]
    assert [found.rewards for found in groups] == [(0, 0, 0, 0.5), (0, 1, 0, 0), (0, 0, 0)]


def test_a_group_of_which_one_rollout_is_left_is_not_rescued(partition):
    """It may be the last session's, whose place the success would take."""
    batch = put(partition, [*group("a", 0, 0), rollout("d", K - 1, [11], 0)])
    assert rescue.failed(batch, ["a", "d"], threshold=0.5) == ["a"]


def test_the_trainer_rescues_fresh_questions_that_the_pool_knows(training_queue):
    trainer = make_trainer(ExperienceMixPPOTrainer, 9, set())
    trainer.experience = ExperienceConfig(rollout_n=K, exp_rescue=True, exp_unit="group")
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    trainer.replay.pool.observe(RolloutGroup("q1", K, (Trajectory([1], [-1.0], step=1),)))
    trainer.agent_loop_manager.rewards = {"q1": 0.0, "q2": 0.0}
    trainer._add_batch_to_generate()
    batch, _ = trainer.replay_buffer.sample(global_steps=STEP, partition_id="train", batch_size=4)
    taken = trainer.in_flight.take({key.split("_")[0] for key in batch.keys})
    (uid,) = [uid for uid, question in trainer.agent_loop_manager.asked.items() if question == "q1"]
    assert rescue.questions(batch, taken, trainer.replay) == {
        uid: "q1"
    }  # q2 has no success in the pool
    trainer.replay.config = ExperienceConfig(rollout_n=K)
    assert rescue.questions(batch, taken, trainer.replay) == {}
