"""Our trainers as far as drawing goes, on a real queue, with rollouts that are written instead of generated."""

import torch
import transfer_queue as tq
from composed import job
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.experience.replay import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl.prompts_out import PromptsOut
from exgrpo.on_verl.stored_groups import StoredGroups

K, STEP = 4, 3


class Rollouts:
    """Instead of verl's agent loops: the questions in `failing` have no rollout, the others all they ask for.

    Of a question in `rewards` every rollout has that reward, of the others the first alone is right.
    """

    def __init__(self, failing):
        self.failing, self.rewards, self.asked = failing, {}, {}

    def generate_sequences(self, batch):
        step = batch["global_steps"]
        for uid, question, count in zip(batch["uid"], batch["question_id"], batch["__rollout_n__"], strict=True):
            assert uid not in self.asked, f"{uid} is {self.asked[uid]} and {question}"
            self.asked[uid] = question
            if question not in self.failing:
                keys = [f"{uid}_{session}_0" for session in range(int(count))]
                rows = [self.row(question, session) for session in range(int(count))]
                tags = [self.tag(row) | {"global_steps": step, "status": "success"} for row in rows]
                tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
            status = "failure" if question in self.failing else "finished"
            tags = [{"is_prompt": True, "status": status, "global_steps": step}]
            tq.kv_batch_put(keys=[uid], partition_id="train", tags=tags)

    def tag(self, row):
        return {"seq_len": 2}

    def row(self, question, session):
        reward = self.rewards.get(question, float(session == 0))
        return {"question_id": question, "responses": torch.ones(2), "rm_scores": torch.tensor([0.0, reward])}


def make_trainer(trainer_class, questions, failing, *overrides):
    """A trainer of some questions, with one success of q0 in its pool."""
    keys = ["trainer.v1.sampler.sync_refill_failed_groups=True", "data.train_batch_size=4"]
    keys += [f"actor_rollout_ref.rollout.n={K}", "trainer.rollout_poll_interval=0.05", *overrides]
    trainer = object.__new__(trainer_class)
    trainer.config = job(*keys)
    trainer.experience = ExperienceConfig(rollout_n=K, experience_ratio=0.25)
    trainer.train_dataset = [{"question_id": f"q{i}", "raw_prompt": "?"} for i in range(questions)]
    trainer.row_of_question = {f"q{i}": i for i in range(questions)}
    stream = iter([f"q{i}" for i in range(questions)] * 9)
    trainer._next_question = lambda: (next(stream), False)
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.pool.observe(RolloutGroup("q0", K, (Trajectory([1], [-1.0], step=1),)))
    trainer.replay.mixing = True
    trainer.mix_collate = ExperienceMixCollateFn(trainer._row, K, collate_fn)
    trainer.global_steps, trainer.prompts, trainer.stored = STEP, PromptsOut(), StoredGroups()
    trainer.replay_buffer = trainer._build_replay_buffer()
    trainer.agent_loop_manager = Rollouts(failing)
    return trainer
