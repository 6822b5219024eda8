"""verl's log-prob pass of our trainer on a real queue: all rows of the batch, replayed ones
included.
"""

import pytest
from composed import job
from queue_rows import Model, completed, group, put, trajectory
from queue_trainer import K
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer
from exgrpo.on_verl import queue

PROMPT = [7, 8, 9]


@pytest.fixture
def passed_batch(partition):
    """Of groups a and b, each with a replayed row; padded to 8 rows as verl does."""

    def make():
        model = Model()
        rows = group("a", 1, 0) + group("b", 1, 0, 0)
        for row in rows:
            del row["old_log_probs"], row["entropy"]  # which the pass writes
        batch = queue.in_order(put(partition, rows))
        chosen = {"a": trajectory(21, 22, 23, 24), "b": trajectory(31, 32)}
        batch, _ = completed(batch, chosen, K - 1)
        batch = upsample_batch_to_divisible_size(queue.in_order(batch), 8, eos_token_id=0)
        trainer = object.__new__(ExperienceMixPPOTrainer)
        trainer.local_trigger_step = 0
        trainer.config = job("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1")
        trainer.experience, trainer.actor_rollout_wg = (
            type("Replay", (), {"experience": False}),
            model,
        )
        return trainer, batch, model

    return make


def read(batch, field):
    rows = queue.read(batch.keys, batch.partition_id, [field])[field].unbind()
    return dict(zip(batch.keys, (row.tolist() for row in rows), strict=True))


def test_all_rows_pass_and_have_their_log_probs_and_entropies(passed_batch):
    trainer, batch, model = passed_batch()
    metrics = {}
    after = trainer._compute_old_log_prob(batch, metrics)
    assert after.keys == batch.keys
    (rows,) = model.calls
    assert len(rows) == 8 and [*PROMPT, 21, 22, 23, 24] in rows and [*PROMPT, 31, 32] in rows
    entropies, log_probs, responses = (
        read(batch, name) for name in ("entropy", "old_log_probs", "responses")
    )
    assert entropies == responses, "the model's entropy of a token is its id"
    assert log_probs == {key: [-token for token in row] for key, row in responses.items()}
    real = [token for key, row in responses.items() if not key.startswith("pad") for token in row]
    length = trainer.config.data.max_response_length
    assert metrics["actor/entropy"] == pytest.approx(sum(real) / 7 / length), (
        "of all rows, the replayed ones included"
    )


@pytest.mark.parametrize("factor", [0.125, 3.0])
def test_the_entropy_does_not_depend_on_the_scale_of_the_loss(passed_batch, factor):
    found = []
    for scale in (1, factor):
        trainer, batch, _ = passed_batch()
        trainer.config.actor_rollout_ref.actor.loss_scale_factor *= scale
        trainer._compute_old_log_prob(batch, metrics := {})
        found.append(metrics["actor/entropy"])
    assert found[0] == pytest.approx(found[1]) and found[0] > 0
