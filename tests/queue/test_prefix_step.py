"""A step of our trainer with prefixes, by verl's own functions but for rollouts and actor."""

import numpy as np
import pytest
import torch
from queue_trainer import WHOLE_STEP, K, WholeRollouts, make_ready, make_trainer, pass_batch, sample

from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.trajectory import Trajectory
from exgrpo.mix_trainer_experience import (
    ExperienceMixPPOTrainer,
    ExperienceMixPPOTrainerColocateAsync,
)
from exgrpo.on_verl import queue
from exgrpo.on_verl.correct import FRESH

STORED = (30, 31, 32, 33, 34, 35)


class Continued(WholeRollouts):
    """Each rollout begins with what its prompt was sent out with, as our agent loop writes it."""

    def generate_sequences(self, batch):
        self.prefixes = dict(zip(batch["question_id"], batch["prefix"], strict=True))
        super().generate_sequences(batch)

    def row(self, question, session):
        row = super().row(question, session)
        prefix = torch.tensor([*map(int, self.prefixes[question].split())], dtype=torch.int64)
        row["responses"] = torch.cat([prefix, row["responses"]])
        row["response_mask"] = torch.cat([torch.zeros_like(prefix), row["response_mask"]])
        row["loss_mask"] = row["response_mask"]
        row["input_ids"] = torch.cat([row["prompts"], row["responses"]])
        row["position_ids"] = torch.arange(len(row["input_ids"]))
        zeros = torch.zeros(len(prefix))
        for name in ("rm_scores", "rollout_log_probs"):
            row[name] = torch.cat([zeros, row[name]])
        return row


@pytest.fixture(params=[ExperienceMixPPOTrainer, ExperienceMixPPOTrainerColocateAsync])
def stepped(training_queue, request):
    """After a step of four questions, one of which goes on from a prefix."""
    trainer = make_trainer(request.param, 9, set(), *WHOLE_STEP, "trainer.exp_unit=prefix")
    trainer.replay = ExperienceReplay(trainer.experience, trainer.row_of_question.keys())
    trainer.replay.mixing = True
    rollouts = [
        Trajectory([*STORED[:5], last], [-1.0] * 6, 1, 0.5, reward=float(last == 35))
        for last in (35, 36, 37, 38)
    ]
    trainer.replay.groups.hold([StoredGroup("q7", 1, tuple(rollouts), np.array([3], np.int32))])
    make_ready(trainer)
    trainer.agent_loop_manager = Continued(set())
    trainer._add_batch_to_generate()
    metrics = {}
    return trainer, pass_batch(trainer, sample(trainer), metrics), metrics


def read(batch, field):
    rows = queue.read(batch.keys, batch.partition_id, [field])[field].unbind()
    return dict(zip(batch.keys, (row.tolist() for row in rows), strict=True))


def test_the_prefix_is_masked_and_nothing_of_it_is_learned_or_stored(stepped):
    trainer, batch, metrics = stepped
    uid_of = {question: uid for uid, question in trainer.agent_loop_manager.asked.items()}
    assert set(uid_of) == {"q7", "q0", "q1", "q2"} and len(batch) == 4 * K
    fields = "response_mask", "responses", "advantages", "rollout_is_weights", "old_log_probs"
    masks, responses, advantages, codes, old = (read(batch, name) for name in fields)
    by_hand = np.array([1, 0, 0, 0]) - 0.25
    for session in range(K):
        key = f"{uid_of['q7']}_{session}_0"
        own = 2 + session  # tokens that the rollout sampled itself
        assert responses[key][:3] == list(STORED[:3]) and masks[key] == [0, 0, 0] + [1] * own
        assert advantages[key] == pytest.approx([0, 0, 0] + [by_hand[session]] * own)
        assert set(codes[key]) == {FRESH}, "on-policy: no importance ratio"
        assert len(old[key]) == 3 + own
    others = [key for key in batch.keys if not key.startswith(uid_of["q7"])]
    assert all(set(masks[key]) == {1} for key in others)
    assert metrics["experience/prefix_groups"] == 1 and metrics["experience/prefix_score"] == 0.25
    assert metrics["experience/fresh_score"] == 0.25 and metrics["experience/stored"] == 3
    assert metrics["experience/generated_tokens"] == 4 * (2 + 3 + 4 + 5)
    assert sorted(group.question for group in trainer.replay.groups) == ["q0", "q1", "q2", "q7"]
    assert trainer.replay.prefixes.share("q7") == 0.5 + 0.5 * 0.25, "too hard: more of it"
