"""verl's log-prob pass of our trainer on a real queue: what was scored as a candidate does not pass a second time."""

import pytest
import torch
from composed import job
from queue_rows import Model, group, put, trajectory
from queue_trainer import K
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer, ExperienceMixPPOTrainerSeparateAsync
from exgrpo.on_verl import queue
from exgrpo.on_verl import queue_ops as ops
from exgrpo.on_verl.candidate_scoring import CandidateScorer

PROMPT = [7, 8, 9]


@pytest.fixture
def passed_batch(partition):
    """Of groups a and b, each with a replayed row, that of a was scored; padded to 8 rows as verl does."""

    def make(ranks=1, trainer_class=ExperienceMixPPOTrainer, micro_batch=1):
        model = Model(ranks)
        rows = group("a", 1, 0) + group("b", 1, 0, 0)
        for row in rows:
            del row["old_log_probs"], row["entropy"]  # which the pass writes
        batch = ops.in_order(put(partition, rows))
        chosen = {"a": trajectory(21, 22, 23, 24), "b": trajectory(31, 32)}
        scorer = CandidateScorer({"a": torch.tensor(PROMPT)}, model.compute_log_prob, ranks, 1, 1.0)
        scorer([("a", chosen["a"])])
        batch = ops.inject(batch, ops.first_siblings(batch, chosen), chosen, K - 1, scorer.passed_of(chosen))
        batch = upsample_batch_to_divisible_size(ops.in_order(batch), 8, eos_token_id=0)
        model.calls.clear()
        trainer = object.__new__(trainer_class)
        trainer.local_trigger_step = 0
        trainer.config = job(f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={micro_batch}")
        trainer.experience, trainer.actor_rollout_wg = type("Replay", (), {"experience": False}), model
        return trainer, batch, model

    return make


def read(batch, field):
    rows = queue.read(batch.keys, batch.partition_id, [field])[field].unbind()
    return dict(zip(batch.keys, (row.tolist() for row in rows), strict=True))


def test_a_scored_row_is_left_out_and_has_its_log_probs_and_entropies_all_the_same(passed_batch):
    trainer, batch, model = passed_batch()
    metrics = {}
    after = trainer._compute_old_log_prob(batch, metrics)
    assert after.keys == batch.keys and trainer.actor_rollout_wg is model
    (rows,) = model.calls
    assert len(rows) == 7 and [*PROMPT, 21, 22, 23, 24] not in rows and [*PROMPT, 31, 32] in rows
    entropies, log_probs, responses = (read(batch, name) for name in ("entropy", "old_log_probs", "responses"))
    assert entropies == responses, "the model's entropy of a token is its id"
    assert log_probs == {key: [-token for token in row] for key, row in responses.items()}
    real = [token for key, row in responses.items() if not key.startswith("pad") for token in row]
    length = trainer.config.data.max_response_length
    assert metrics["actor/entropy"] == pytest.approx(sum(real) / 7 / length), "over all rows, the scored one included"


@pytest.mark.parametrize("factor", [0.125, 3.0])
def test_the_entropy_does_not_depend_on_the_scale_of_the_loss(passed_batch, factor):
    found = []
    for scale in (1, factor):
        trainer, batch, _ = passed_batch()
        trainer.config.actor_rollout_ref.actor.loss_scale_factor *= scale
        trainer._compute_old_log_prob(batch, metrics := {})
        found.append(metrics["actor/entropy"])
    assert found[0] == pytest.approx(found[1]) and found[0] > 0


@pytest.mark.parametrize(("ranks", "micro_batch"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_ranks_get_as_many_whole_micro_batches_each(passed_batch, ranks, micro_batch):
    """One scored row alone would leave seven to share out: it passes again."""
    trainer, batch, model = passed_batch(ranks, micro_batch=micro_batch)
    trainer._compute_old_log_prob(batch, {})
    (rows,) = model.calls
    assert len(rows) == 8 and [*PROMPT, 21, 22, 23, 24] in rows
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        tag["is_passed"] = key.split("_")[1] == "0"
    model.calls.clear()
    trainer._compute_old_log_prob(batch, {})
    (rows,) = model.calls
    assert len(rows) == {2: 6, 4: 8}[ranks * micro_batch]


@pytest.mark.parametrize(("update", "rows_passed"), [(0, 7), (1, 8)])
def test_in_separate_async_later_updates_pass_all_rows_under_the_first_weights(passed_batch, update, rows_passed):
    """The weights are saved and restored by verl around its pass; candidates were scored under the current ones."""
    trainer, batch, model = passed_batch(trainer_class=ExperienceMixPPOTrainerSeparateAsync)
    trainer.local_trigger_step = update
    called = []
    for name in ("save_model_to_cpu", "restore_model_from_cpu", "clear_cpu_model"):
        setattr(model, name, lambda number, name=name: called.append((name.split("_")[0], number)))
    trainer._compute_old_log_prob(batch, {})
    (rows,) = model.calls
    assert len(rows) == rows_passed and trainer.actor_rollout_wg is model
    assert called == [[("save", 0)], [("save", 1), ("restore", 0), ("restore", 1), ("clear", 1)]][update]
