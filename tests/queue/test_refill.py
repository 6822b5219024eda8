"""Groups whose rollouts all failed are replaced within their step, by verl's own replay buffer and
on a real queue.
"""

import pytest
import transfer_queue as tq
from queue_trainer import STEP, K, make_trainer

from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer


def test_failed_groups_are_replaced_by_questions_new_to_the_step(training_queue):
    trainer = make_trainer(ExperienceMixPPOTrainer, questions=9, failing={"q1", "q3", "q4"})
    trainer._add_batch_to_generate()
    batch, metrics = trainer.replay_buffer.sample(
        global_steps=STEP, partition_id="train", batch_size=4
    )
    asked = trainer.agent_loop_manager.asked
    assert list(asked) == [
        f"000000{STEP}q0000{i}" for i in range(7)
    ]  # q4 was itself a replacement and failed too
    assert sorted(asked.values()) == [f"q{i}" for i in range(7)]
    questions = tq.kv_batch_get(
        keys=batch.keys, partition_id="train", select_fields=["question_id"]
    )["question_id"]
    rows = {}
    for key, question in zip(batch.keys, questions, strict=True):
        assert asked[key.split("_")[0]] == question, "a group holds another question's rows"
        rows[question] = rows.get(question, 0) + 1
    assert rows == {"q0": K - 1, "q2": K, "q5": K, "q6": K}
    out = trainer.in_flight.take(asked)
    assert {uid: prompt.question for uid, prompt in out.items()} == asked
    assert [prompt.question for prompt in out.values() if prompt.is_replayed] == ["q0"]
    assert metrics["training/rollout_failure/evicted_samples"] == 3
    trainer.global_steps += 1
    again = trainer._next_train_batch()
    assert len(again) == 4 and again["uid"][0].endswith("q00000")  # the next step begins anew


def test_when_no_question_is_left_the_run_says_so(training_queue):
    trainer = make_trainer(ExperienceMixPPOTrainer, questions=5, failing={"q1", "q2"})
    trainer._add_batch_to_generate()
    with pytest.raises(RuntimeError, match="step 3 needs 2 more questions, 1 are not in it yet"):
        trainer.replay_buffer.sample(global_steps=STEP, partition_id="train", batch_size=4)
