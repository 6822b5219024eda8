"""verl's modes with replay, by verl's own functions on a real queue: draws ahead, advantages,
rollout correction.
"""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from composed import job
from queue_rows import completed, group, put, rows_of, trajectory
from queue_trainer import (
    FILTERED,
    STEP,
    WHOLE_STEP,
    K,
    filters_by_reward,
    make_ready,
    make_trainer,
    pass_batch,
)

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.mix_trainer_experience import (
    ExperienceMixPPOTrainer,
    ExperienceMixPPOTrainerColocateAsync,
    ExperienceMixPPOTrainerSeparateAsync,
)
from exgrpo.on_verl import correct, queue
from exgrpo.on_verl.correct import FRESH, REPLAYED
from exgrpo.on_verl.in_flight import InFlight
from exgrpo.on_verl.old_checkpoints import Rotation
from exgrpo.on_verl.saved_run import SavedRun
from exgrpo.preflight.modes import ESTIMATORS
from exgrpo.saved.pool_folder import PoolFolder

UNUSED = {}, PoolFolder(), Rotation(Path(), None)  # what a save needs

# -- prompts that are submitted ahead --------------------------------------------------------------


def asynchronous(questions, failing=(), *overrides):
    return make_trainer(ExperienceMixPPOTrainerColocateAsync, questions, set(failing), *overrides)


def test_a_question_that_is_out_is_not_drawn_again_and_each_draw_has_its_share(training_queue):
    trainer = asynchronous(12)
    trainer._add_prompts_to_generate(4)  # the warm-up: q0 is replayed
    trainer._add_batch_to_generate()
    asked = trainer.agent_loop_manager.asked
    assert list(asked.values()).count("q0") == 1 and len(set(asked.values())) == 8
    assert list(asked) == [f"000000{STEP}q0000{i}" for i in range(8)]
    batch, _ = trainer.replay_buffer.sample(global_steps=STEP, partition_id="train", batch_size=4)
    taken = trainer.in_flight.take({key.split("_")[0] for key in batch.keys})
    assert len(taken) == 4 and {
        prompt.question for prompt in taken.values() if prompt.is_replayed
    } <= {"q0"}
    trainer.global_steps += 1
    trainer._add_batch_to_generate()
    out = [prompt.question for uid, prompt in trainer.in_flight.take(asked).items()]
    assert sorted(out) == sorted(set(out)) and len(out) == 8
    drawn_again = list(asked.values()).count("q0") - 1
    assert drawn_again == (
        "q0" in {prompt.question for prompt in taken.values()}
    )  # only if it had come back


@pytest.mark.parametrize("reason", ["failed", "stale"])
def test_the_question_of_an_evicted_group_is_free_again(training_queue, reason):
    drop = [
        "trainer.v1.sampler.max_off_policy_strategy=drop",
        "trainer.v1.sampler.max_off_policy_threshold=1",
    ]
    trainer = asynchronous(12, ["q0"] if reason == "failed" else [], *drop)
    trainer._add_prompts_to_generate(4)
    before = set(trainer.agent_loop_manager.asked)
    trainer.global_steps += reason == "stale"
    trainer.agent_loop_manager.failing = set()
    trainer.replay_buffer.wait_for_sampleable(
        trainer.global_steps, "train", 4
    )  # evicts, and refills by as many
    again = {
        uid: question
        for uid, question in trainer.agent_loop_manager.asked.items()
        if uid not in before
    }
    assert "q0" in again.values() and len(again) == (1 if reason == "failed" else 4)
    assert (
        queue.prompts("train") == set(trainer.in_flight.state())
        and len(set(trainer.in_flight.questions)) == 4
    )


def test_what_is_out_survives_a_checkpoint_and_nothing_else_does(training_queue):
    trainer = asynchronous(12)
    trainer._add_batch_to_generate()
    state = json.loads(json.dumps(trainer.in_flight.state()))
    resumed = asynchronous(12)
    resumed.saved_run = SavedRun(STEP, {"prompts": state}, *UNUSED)
    resumed._restore_prompts()
    assert resumed.in_flight.state() == trainer.in_flight.state()
    batch, _ = resumed.replay_buffer.sample(global_steps=STEP, partition_id="train", batch_size=4)
    marks = {
        prompt.question: prompt.is_replayed
        for prompt in resumed.in_flight.take(queue_uids(batch)).values()
    }
    assert marks == {"q0": True, **dict.fromkeys(("q1", "q2", "q3"), False)}
    rows = [key.split("_")[0] for key in batch.keys]
    assert sorted(map(rows.count, set(rows))) == [K - 1, K, K, K]
    with pytest.raises(RuntimeError, match="step 3: the saved queue lacks 4 of 4 prompts"):
        resumed._restore_prompts()


def queue_uids(batch):
    return {key.split("_")[0] for key in batch.keys}


def test_another_mode_says_how_many_prompts_it_drops(caplog):
    trainer = object.__new__(ExperienceMixPPOTrainer)
    trainer.in_flight = InFlight()
    prompts = {"0000001q00000": ["q1", False, True]}
    trainer.saved_run = SavedRun(STEP, {"prompts": prompts}, *UNUSED)
    trainer._restore_prompts()
    assert (
        "1 prompts were in flight and are dropped" in caplog.text
        and not trainer.in_flight.questions
    )


class Weights:
    """An actor that loads weights from whatever folder."""

    def load_checkpoint(self, local_path, del_local_after_load):
        self.folder = local_path


@pytest.mark.parametrize("step", [2, 6])
def test_weights_of_another_step_than_the_pools_are_refused(tmp_path, step):
    trainer = object.__new__(ExperienceMixPPOTrainer)
    folder = tmp_path / f"global_step_{step}"
    trainer.config = job("trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}")
    trainer.trainer_mode, trainer.use_critic, trainer.actor_rollout_wg = "sync", False, Weights()
    trainer.experience, trainer.in_flight = ExperienceConfig(rollout_n=K), InFlight()
    trainer.replay = ExperienceReplay(trainer.experience, ["q1"])
    trainer.saved_run = SavedRun(step, {}, *UNUSED)
    trainer._load_checkpoint()
    assert trainer.global_steps == step and trainer.actor_rollout_wg.folder == f"{folder}/actor"
    trainer.saved_run.step = 4
    with pytest.raises(RuntimeError, match=f"weights of step {step} with the pool of step 4"):
        trainer._load_checkpoint()


# -- questions alone -------------------------------------------------------------------------------

EVERY_MODE = (
    ExperienceMixPPOTrainer,
    ExperienceMixPPOTrainerColocateAsync,
    ExperienceMixPPOTrainerSeparateAsync,
)


def without_a_copy_of_the_weights(trainer):
    """verl's separate mode keeps those that generated; the model here has none."""
    for name in ("save_model_to_cpu", "restore_model_from_cpu", "clear_cpu_model"):
        setattr(trainer.actor_rollout_wg, name, lambda number: None)


@pytest.mark.parametrize("trainer_class", EVERY_MODE)
def test_a_question_that_is_drawn_alone_has_k_fresh_rollouts_and_nothing_old(
    training_queue, trainer_class
):
    one_update = "trainer.v1.separate_async.parameter_sync_step=1"
    trainer = make_trainer(trainer_class, 12, set(), *WHOLE_STEP, one_update)
    trainer.replay.config = trainer.experience = ExperienceConfig(rollout_n=K, exp_unit="prompt")
    make_ready(trainer)
    without_a_copy_of_the_weights(trainer)
    trainer._add_batch_to_generate()
    assert list(trainer.agent_loop_manager.asked.values()).count("q0") == 1
    batch, _ = trainer.replay_buffer.sample(STEP, "train", 4)
    batch.extra_info["temperature"] = 1.0
    trained = pass_batch(trainer, batch, metrics := {})
    assert len(trained) == 4 * K and metrics["experience/replayed_groups"] == 0
    group = next(group for group in trainer.replay.pool.candidates("q0"))
    assert group.step < STEP, "what was stored is still there, and was not trained on"


# -- whole past groups and rescue ------------------------------------------------------------------


KEYS = [*WHOLE_STEP, "actor_rollout_ref.actor.policy_loss.off_policy_loss=topr"]
MODES = {
    ExperienceMixPPOTrainerColocateAsync: 1,
    ExperienceMixPPOTrainerSeparateAsync: 2,
}  # -> updates a step


def with_groups(trainer_class):
    """A trainer of 20 questions with six past groups, of q10 to q15."""
    steps = f"trainer.v1.separate_async.parameter_sync_step={MODES[trainer_class]}"
    trainer = make_trainer(trainer_class, 20, set(), *KEYS, steps)
    trainer.experience = ExperienceConfig(rollout_n=K, exp_unit="group", exp_rescue=True)
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    rollouts = [
        Trajectory([20, 21 + i], [-20.5, -21.5 - i], 1, 0.5, reward=float(i == 0)) for i in range(K)
    ]
    prompt = np.array([3, 4], np.int32)
    trainer.replay.groups.hold(
        [StoredGroup(f"q{i}", 1, tuple(rollouts), prompt) for i in range(10, 16)]
    )
    make_ready(trainer)
    without_a_copy_of_the_weights(trainer)
    return trainer


def train(trainer):
    """The updates of a step, after its draw: the batch of each and the metrics of the last."""
    batches, updates = [], trainer.parameter_sync_step
    for update in range(updates):
        trainer.local_trigger_step = update
        waited_for = 4 // updates - trainer.past_groups_now
        batch, _ = trainer.replay_buffer.sample(STEP, "train", waited_for)
        batch.extra_info["temperature"] = 1.0
        batches.append(pass_batch(trainer, batch, metrics := {}))
    return batches, metrics


@pytest.mark.parametrize("trainer_class", MODES)
def test_past_groups_are_drawn_for_the_step_that_trains_on_them(training_queue, trainer_class):
    trainer = with_groups(trainer_class)
    trainer._add_prompts_to_generate(4)  # the warm-up
    assert not trainer.waiting and len(trainer.in_flight.questions) == 4
    trainer._add_batch_to_generate()
    past = [each.question for each in trainer.waiting]
    assert len(past) == 2 and len(trainer.in_flight.questions) == 6, "two of four are fresh"
    trainer._add_prompts_to_generate(2)  # what replaces evicted groups
    assert len(trainer.waiting) == 2 and not set(past) & set(trainer.in_flight.questions)
    assert not {"waiting", "stored"} & trainer.replay.state().keys() and set(
        trainer.in_flight.state()
    ) == set(trainer.agent_loop_manager.asked), (
        "a checkpoint has fresh prompts in flight and no past group"
    )
    batches, metrics = train(trainer)
    updates = MODES[trainer_class]
    stored = [{uid for uid in queue_uids(batch) if "s" in uid} for batch in batches]
    assert [len(uids) for uids in stored] == [2 // updates] * updates and len(
        set().union(*stored)
    ) == 2
    assert [len(batch) for batch in batches] == [4 // updates * K] * updates and not trainer.waiting
    assert metrics["experience/stored_groups"] == 2 and metrics[
        "experience/stored_group_drift"
    ] == pytest.approx(0.25)
    assert sorted(row.question for row in trainer.replay.pool.replays) == sorted(past)
    assert len(trainer.in_flight.questions) == 6, (
        "as many prompts are ahead as were replaced and warmed up"
    )


@pytest.mark.parametrize("trainer_class", MODES)
def test_a_group_that_was_submitted_ahead_is_rescued_when_it_is_trained_on(
    training_queue, trainer_class
):
    trainer = with_groups(trainer_class)
    trainer.agent_loop_manager.rewards = {"q0": 0.0}
    trainer.global_steps = STEP - 1
    trainer._add_prompts_to_generate(2)  # q0 and q1; a success of q0 is found only then
    trainer.global_steps = STEP
    trainer.replay.pool.observe(RolloutGroup("q0", K, (Trajectory([5, 6], [-5.5, -6.5], step=1),)))
    trainer._add_batch_to_generate()
    batches, metrics = train(trainer)
    (uid,) = [uid for uid, question in trainer.agent_loop_manager.asked.items() if question == "q0"]
    rewards = {}
    for batch in batches:
        rewards |= dict(zip(batch.keys, map(sum, read(batch, "rm_scores")), strict=True))
    assert [rewards[f"{uid}_{session}_0"] for session in range(K)] == [0, 0, 0, 1]
    assert metrics["experience/replayed_groups"] == 1


def test_past_groups_join_prompts_that_were_drawn_before_mixing_began(training_queue):
    trainer = with_groups(ExperienceMixPPOTrainerColocateAsync)
    trainer.replay.mixing, trainer.global_steps = False, STEP - 1
    trainer._add_prompts_to_generate(2)  # the older ones are trained on first
    trainer.replay.mixing, trainer.global_steps = True, STEP
    trainer._add_batch_to_generate()
    (batch,), _ = train(trainer)
    assert {code for row in read(batch, "rollout_is_weights") for code in row} == {FRESH, REPLAYED}


def test_the_odds_of_questions_in_flight_are_saved_and_those_of_evicted_ones_forgotten(
    training_queue,
):
    trainer = asynchronous(12)
    trainer._add_prompts_to_generate(4)
    state = json.loads(json.dumps(trainer.replay.state()))
    resumed = asynchronous(12)
    resumed.replay.restore(state)
    choice = resumed.replay.choose(resumed.replay.candidates(["q0"]), None)
    assert choice.groups[0].odds.bucket == 1 and choice.groups[0].odds.size == 1
    solved = tuple(Trajectory([token], [-1.0], step=1) for token in range(K))
    trainer.replay.pool.observe(RolloutGroup("q0", K, solved))  # it is retired, and was evicted
    trainer.replay.draw(STEP + 1, 4, trainer._next_question, in_flight=[])
    assert trainer.replay.state()["odds"] == {}


# -- groups that are filtered out ------------------------------------------------------------------


@filters_by_reward
@pytest.mark.parametrize(
    "trainer_class", [ExperienceMixPPOTrainer, ExperienceMixPPOTrainerColocateAsync]
)
@pytest.mark.parametrize(("reward", "kept"), [(0.0, True), (1.0, False)])
def test_a_group_that_gets_a_replayed_success_is_filtered_only_if_all_its_rollouts_are_right(
    training_queue, trainer_class, reward, kept
):
    """q0 is replayed; q1 is always right and q2 always wrong: both are filtered out, and that is
    known of them.
    """
    trainer = make_trainer(trainer_class, 12, set(), *FILTERED)
    trainer.agent_loop_manager.rewards = {"q0": reward, "q1": 1.0, "q2": 0.0}
    trainer._add_batch_to_generate()
    batch, metrics = trainer.replay_buffer.sample(
        global_steps=STEP, partition_id="train", batch_size=4
    )
    asked = trainer.agent_loop_manager.asked
    trained = {asked[uid] for uid in queue_uids(batch)}
    assert len(trained) == 4 and not trained & {"q1", "q2"} and (kept or "q0" not in trained)
    if (
        kept and trainer.asynchronous
    ):  # the synchronous buffer discards what its refills bring too much of
        assert "q0" in trained
    groups = trainer.replay_buffer.take()
    observed = {}
    for found in groups:  # asynchronously q0 may be drawn again, as a fresh question
        observed.setdefault(found.question, (found.size, found.replayed, found.solved))
    assert observed == {"q1": (K, 0, K), "q2": (K, 0, 0)} | (
        {} if kept else {"q0": (K - 1, 1, K - 1)}
    )
    assert all(
        found.mean_reward == trainer.agent_loop_manager.rewards[found.question] for found in groups
    )
    assert (
        metrics["training/filter_groups/evicted_samples"] == len(groups)
        and not trainer.replay_buffer.take()
    )
    assert metrics["_dapo_filtered_reward_counts"] == {0.0: 1, 1.0: len(groups) - 1}


@filters_by_reward
def test_filtered_groups_retire_and_file_their_questions(training_queue):
    trainer = make_trainer(ExperienceMixPPOTrainer, 12, set(), *FILTERED)
    trainer.agent_loop_manager.rewards = {"q0": 3.0, "q1": 0.0}
    trainer._add_batch_to_generate()
    trainer.replay_buffer.sample(global_steps=STEP, partition_id="train", batch_size=4)
    groups = trainer.replay_buffer.take()
    # q0 waits for a stored success: without it no group that was filtered out varies
    assert {found.all_rewards for found in groups} == {(3.0,) * K, (0.0,) * K}
    metrics = trainer.replay.observe(STEP, groups, {})
    assert trainer.replay.pool.retired == ["q0"] and "q1" not in trainer.replay.pool
    assert metrics["fresh_score"] == (K - 1) / (2 * K - 1)


@pytest.fixture(scope="module", autouse=True)
def users_functions():
    """Registers an advantage estimator, as verl does where VERL_USE_EXTERNAL_MODULES names a module
    of a user.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "unit")
        importlib.import_module("users_functions")
        yield


# -- verl's advantages over a group that holds a replayed row --------------------------------------


@pytest.fixture
def make_batch(partition):
    """Groups a (rewards 1, 0, 0 and a replayed success) and b (1, 0, 0, 0); our trainer by some
    keys.
    """

    def make(*overrides):
        trainer = object.__new__(ExperienceMixPPOTrainer)
        trainer.config = job(f"actor_rollout_ref.rollout.n={K}", *overrides)
        trainer.experience, trainer.mixed = type("Replay", (), {"experience": True}), True
        batch = put(partition, group("a", 1, 0, 0) + group("b", 1, 0, 0, 0))
        batch, trainer.replayed = completed(batch, {"a": trajectory(5, 6, 7)}, session=K - 1)
        batch = queue.in_order(batch)
        correct.mark(batch, mixed=True)
        correct.put_recorded(batch, rows_of(trainer.replayed), ExperienceConfig(rollout_n=K))
        return trainer, batch

    return make


def read(batch, field):
    return [
        row.tolist() for row in queue.read(batch.keys, batch.partition_id, [field])[field].unbind()
    ]


@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize("name", [*ESTIMATORS, "users_estimator"])
def test_a_replayed_row_counts_in_its_own_group_alone(make_batch, name, std):
    trainer, batch = make_batch(
        f"algorithm.adv_estimator={name}", f"algorithm.norm_adv_by_std_in_grpo={std}"
    )
    trainer._compute_advantage(batch, {})
    found = dict(zip(batch.keys, (row[0] for row in read(batch, "advantages")), strict=True))
    right, wrong = found["a_0_0"], found["a_1_0"]
    if name != "grpo_passk":  # which rewards the best of a group alone
        assert right > 0 > wrong == found["a_2_0"] and found["a_3_0"] == pytest.approx(
            right, rel=1e-3
        )
        assert found["b_0_0"] > right, "one success of four is rarer than two of four"
    if name == "grpo" and not std:
        assert found == pytest.approx(
            {"a_0_0": 0.5, "a_1_0": -0.5, "a_2_0": -0.5, "a_3_0": 0.5, "b_0_0": 0.75}
            | dict.fromkeys(("b_1_0", "b_2_0", "b_3_0"), -0.25),
            abs=1e-5,
        )


# -- rollout correction ----------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_fresh_tokens_carry_their_weight_and_replayed_ones_their_mark(make_batch, level):
    """Old and rollout log-probs of session s are -.25 (s + 1) and -.5: the weights are exp of their
    difference.
    """
    correction = "algorithm.rollout_correction"
    trainer, batch = make_batch(f"{correction}.rollout_is={level}", f"{correction}.rollout_rs=null")
    correct.exempt_replayed_rows(batch, rows_of(trainer.replayed))
    batch = trainer._compute_advantage(batch, {})
    codes = dict(zip(batch.keys, read(batch, "rollout_is_weights"), strict=True))
    assert codes.pop("a_3_0") == [REPLAYED] * 3
    for key, row in codes.items():
        session = int(key.split("_")[1])
        exponent = (0.5 - 0.25 * (session + 1)) * (len(row) if level == "sequence" else 1)
        assert row == pytest.approx([min(2.0, float(torch.tensor(exponent).exp()))] * len(row)), key


def test_rejected_tokens_are_fresh_ones(make_batch):
    correction = "algorithm.rollout_correction"
    keys = [f"{correction}.rollout_rs=token_k1", f"{correction}.rollout_rs_threshold='0.9_1.1'"]
    trainer, batch = make_batch(*keys)
    correct.exempt_replayed_rows(batch, rows_of(trainer.replayed))
    batch = trainer._compute_advantage(batch, {})
    masks = dict(zip(batch.keys, read(batch, "response_mask"), strict=True))
    kept = {key for key, row in masks.items() if any(row)}
    assert kept == {"a_1_0", "b_1_0", "a_3_0"}  # session 1 has a ratio of 1
    assert (
        dict(zip(batch.keys, read(batch, "rollout_is_weights"), strict=True))["a_3_0"]
        == [REPLAYED] * 3
    )
