"""Groups whose rollouts all failed are replaced within their step, by verl's own replay buffer and on a real queue."""

from pathlib import Path

import pytest
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_dir
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.experience.replay import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer

K, STEP = 4, 3
CONFIG = Path(__file__).parents[2] / "exgrpo" / "config"


class Rollouts:
    """Instead of verl's agent loops: the questions in `failing` have no rollout, the others all they ask for."""

    def __init__(self, failing):
        self.failing, self.asked = failing, {}

    def generate_sequences(self, batch):
        for uid, question, count in zip(batch["uid"], batch["question_id"], batch["__rollout_n__"], strict=True):
            assert uid not in self.asked, f"{uid} is {self.asked[uid]} and {question}"
            self.asked[uid] = question
            if question not in self.failing:
                keys = [f"{uid}_{session}_0" for session in range(int(count))]
                rows = [{"question_id": question, "responses": torch.ones(2)} for _ in keys]
                tags = [{"seq_len": 2, "global_steps": STEP, "status": "success"} for _ in keys]
                tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
            status = "failure" if question in self.failing else "finished"
            tq.kv_batch_put(
                keys=[uid],
                partition_id="train",
                tags=[{"is_prompt": True, "status": status, "global_steps": STEP}],
            )


@pytest.fixture
def make_trainer():
    """Our trainer as far as drawing goes, of some questions, with one success of q0 in its pool."""

    def make(questions, failing):
        overrides = ["trainer.v1.sampler.sync_refill_failed_groups=True", "data.train_batch_size=4"]
        overrides += [f"actor_rollout_ref.rollout.n={K}", "trainer.rollout_poll_interval=0.05"]
        trainer = object.__new__(ExperienceMixPPOTrainer)
        with initialize_config_dir(str(CONFIG), version_base=None):
            trainer.config = compose("exgrpo_trainer", overrides)
        trainer.experience = ExperienceConfig(rollout_n=K, experience_ratio=0.25)
        trainer.train_dataset = [{"question_id": f"q{i}", "raw_prompt": "?"} for i in range(questions)]
        trainer.row_of_question = {f"q{i}": i for i in range(questions)}
        stream = iter([f"q{i}" for i in range(questions)] * 9)
        trainer._next_question = lambda: (next(stream), False)
        trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
        trainer.replay.pool.observe(RolloutGroup("q0", K, (Trajectory([1], [-1.0], step=1),)))
        trainer.replay.mixing = True
        trainer.mix_collate = ExperienceMixCollateFn(trainer._row, K, collate_fn)
        trainer.global_steps, trainer.asked_at = STEP, -1
        trainer.replay_buffer = trainer._build_replay_buffer()
        trainer.agent_loop_manager = Rollouts(failing)
        return trainer

    yield make
    if keys := list((tq.kv_list("train") or {}).get("train", {})):
        tq.kv_clear(keys=keys, partition_id="train")


def test_failed_groups_are_replaced_by_questions_new_to_the_step(make_trainer):
    trainer = make_trainer(questions=9, failing={"q1", "q3", "q4"})
    trainer._add_batch_to_generate()
    batch, metrics = trainer.replay_buffer.sample(global_steps=STEP, partition_id="train", batch_size=4)
    asked = trainer.agent_loop_manager.asked
    assert list(asked) == [f"000000{STEP}q0000{i}" for i in range(7)]  # q4 was itself a replacement and failed too
    assert sorted(asked.values()) == [f"q{i}" for i in range(7)]
    questions = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["question_id"])["question_id"]
    rows = {}
    for key, question in zip(batch.keys, questions, strict=True):
        assert asked[key.split("_")[0]] == question, "a group holds another question's rows"
        rows[question] = rows.get(question, 0) + 1
    assert rows == {"q0": K - 1, "q2": K, "q5": K, "q6": K}
    assert {question: asked[uid] for question, uid in trainer.replayed_questions.items()} == {"q0": "q0"}
    assert metrics["training/rollout_failure/evicted_samples"] == 3
    trainer.global_steps += 1
    again = trainer._next_train_batch()
    assert trainer.asked == len(again) == 4 and again["uid"][0].endswith("q00000")  # the next step begins anew


def test_when_no_question_is_left_the_run_says_so(make_trainer):
    trainer = make_trainer(questions=5, failing={"q1", "q2"})
    trainer._add_batch_to_generate()
    with pytest.raises(RuntimeError, match="step 3 needs 2 more questions, 1 are not in it yet"):
        trainer.replay_buffer.sample(global_steps=STEP, partition_id="train", batch_size=4)
