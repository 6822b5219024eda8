"""A step's work on verl's TransferQueue, on a real queue: rows go in as verl's agent loop writes
them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transfer_queue as tq
from queue_rows import completed, group, put, rows_of, trajectory
from tensordict import TensorDict
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import complete, correct, metrics, observe, queue
from exgrpo.on_verl.complete import refuse_several_outputs
from exgrpo.on_verl.correct import FRESH, ON_POLICY, REPLAYED, log_ratios
from exgrpo.on_verl.observe import rollout_groups
from exgrpo.on_verl.sample_prints import first_response

KEYS = ExperienceConfig(rollout_n=3)


class Words:
    """A tokenizer whose words are the ids."""

    def decode(self, ids):
        return " ".join(str(token) for token in ids.tolist())


def test_the_first_graded_response_is_shown_with_its_prompt_and_reward(partition):
    batch = put(partition, group("b", 1, 1) + group("a", 0, 1)[::-1])
    said = first_response(batch, Words())
    assert said.splitlines()[1:] == ["7 8 9", "exgrpo: and the response:", "11 11"]
    assert "2 tokens, reward 0;" in said
    assert "reward 1;" in first_response(put(partition, group("0", 1)), Words())


def test_order_is_that_of_prompts_and_sessions(partition):
    batch = put(partition, group("b", 0, 1) + group("a", 1, 0))
    assert queue.in_order(batch).keys == ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]


def test_a_uid_without_rollouts_has_no_sibling(partition):
    batch = put(partition, group("a", 1, 0) + group("b", 0))
    (name, sibling), *others = complete.first_siblings(batch, {"gone": "q0", "b": "q1"}).items()
    assert (name, others, sibling.uid) == ("q1", [], "b") and complete.first_siblings(
        batch, {"gone": "q0"}
    ) == {}
    assert sibling.row["responses"].tolist() == [11, 11] and sibling.tag is batch.tags[2]
    assert complete.first_siblings(batch, {"a": "q2"})["q2"].tag is batch.tags[0]


def test_an_injected_row_completes_its_group(partition):
    batch = queue.in_order(put(partition, group("a", 1, 0, 0) + group("b", 0, 1)))
    chosen = trajectory(21, 22, 23, 24)
    batch, (record,) = completed(batch, {"b": chosen}, session=2)
    batch = queue.in_order(batch)
    assert record.rows == {"b_2_0": chosen}
    assert batch.keys == ["a_0_0", "a_1_0", "a_2_0", "b_0_0", "b_1_0", "b_2_0"]
    row = tq.kv_batch_get(keys=["b_2_0"], partition_id=partition)[0]
    assert row["responses"].tolist() == [21, 22, 23, 24]
    assert row["input_ids"].tolist() == [7, 8, 9, 21, 22, 23, 24]
    assert row["position_ids"].tolist() == list(range(7))
    assert row["rm_scores"].tolist() == [0, 0, 0, 1]
    assert row["rollout_log_probs"].tolist() == [-2.0] * 4
    assert batch.tags[-1]["seq_len"] == 7 and batch.tags[-1]["max_global_steps"] == 1
    whole = tq.kv_batch_get(keys=batch.keys, partition_id=partition)
    assert len(list(whole["question_id"])) == 6 and set(whole.keys()) >= {
        "uid",
        "raw_prompt",
        "rm_scores",
    }


def test_a_row_of_a_tools_tokens_keeps_its_mask_and_its_reward(partition):
    batch = put(partition, group("a", 1, 0))
    used = Trajectory([5, 6, 7], [-2.0] * 3, 2, 1.0, [1, 0, 1], 0.75)
    batch, replayed = completed(batch, {"a": used}, session=2)
    row = tq.kv_batch_get(keys=["a_2_0"], partition_id=partition)[0]
    assert row["response_mask"].tolist() == row["loss_mask"].tolist() == [1, 0, 1]
    assert row["rm_scores"].tolist() == [0, 0, 0.75]
    assert [int(turns) for turns in queue_turns(batch)] == [
        2,
        2,
        4,
    ]  # the question, a call, what the tool said, the answer
    put_current(batch, {"a_2_0": [-1.0, -9.0, -3.0]})
    assert ratios(batch, replayed) == {"a_2_0": [1.0, -1.0]}


def queue_turns(batch):
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=["num_turns"]
    )["num_turns"]


def test_several_outputs_of_one_session_are_refused():
    refuse_several_outputs(["a_0_0", "a_1_0"])
    with pytest.raises(
        RuntimeError, match="rollout a_1_1: the agent loop returned several outputs of one session"
    ):
        refuse_several_outputs(["a_0_0", "a_1_0", "a_1_1"])


def test_a_success_is_kept_with_the_mask_of_its_row(partition):
    rows = group("a", 1, 0.75, 0.5)
    rows[1]["response_mask"] = rows[1]["loss_mask"] = torch.tensor([1, 0, 1])
    rows[1]["entropy"] = torch.tensor([0.25, 9.0, 0.5])
    (found,) = observed(put(partition, rows), [], 100)
    assert found.successes[1].entropy == 0.375, "of the policy's own tokens"
    assert [each.reward for each in found.successes] == [1.0, 0.75] and found.solved == 2
    assert [
        None if each.loss_mask is None else each.loss_mask.tolist() for each in found.successes
    ] == [
        None,
        [True, False, True],
    ]
    (strict,) = observed(put(partition, group("b", 1, 0.75, 0.5)), [], 100, threshold=0.9)
    assert strict.solved == 1 and strict.rewards == (1, 0.75, 0.5)


def observed(batch, replayed, vocab_size, threshold=0.5):
    fresh = observe.fresh_rows(batch, observe.scored_rows(batch, False))
    return rollout_groups(
        fresh,
        replayed,
        5,
        vocab_size,
        ExperienceConfig(rollout_n=3, exp_success_threshold=threshold),
    )


def test_groups_are_of_fresh_rows_alone(partition):
    batch = put(partition, group("a", 1, 0, 1) + group("b", 0, 1))
    batch, replayed = completed(batch, {"b": trajectory(1, 2)}, session=2)
    batch = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    assert len(batch) == 8  # with verl's padding rows
    groups = {found.question: found for found in observed(batch, replayed, 100)}
    assert {
        name: (found.size, len(found.successes), found.replayed) for name, found in groups.items()
    } == {
        "question of a": (3, 2, 0),
        "question of b": (2, 1, 1),
    }
    stored = groups["question of a"].successes[1]
    assert stored.tokens.tolist() == [13] * 4 and stored.step == 5
    assert stored.log_probs.tolist() == [-0.75] * 4 and stored.entropy == pytest.approx(0.375)


def test_a_success_that_cannot_be_kept_still_counts_for_difficulty(partition, caplog):
    rows = group("a", 1, 1, 1)
    rows[1]["old_log_probs"][0] = float("nan")
    groups = observed(put(partition, rows), [], vocab_size=13)  # the third's tokens are 13
    assert [(found.solved, found.refused, len(found.successes)) for found in groups] == [(3, 2, 1)]
    assert "log_probs[0]=nan: must be finite" in caplog.text
    assert "tokens holds 13: must be below 13, the size of the vocabulary" in caplog.text


def test_replayed_rows_get_their_recorded_log_probs_and_fresh_ones_keep_theirs(partition):
    batch = put(partition, group("a", 1, 0))
    replayed = {"a": trajectory(5, 6, 7)}
    batch, replayed = completed(batch, replayed, session=2)
    assert not correct.put_recorded(batch, rows_of(replayed), replace(KEYS, exp_is_correct=False))
    assert old_log_probs(batch) == [
        [-0.25] * 2,
        [-0.5] * 3,
        [-0.25] * 2,
    ]  # of the row it is a copy of
    assert correct.put_recorded(batch, rows_of(replayed), KEYS)
    assert old_log_probs(batch) == [[-0.25] * 2, [-0.5] * 3, [-2.0] * 3]


@pytest.mark.parametrize(("missing", "expected"), [("current", -0.25), ("one", 0.0)])
def test_log_probs_nobody_recorded_are_what_the_key_says(partition, missing, expected):
    batch = put(partition, group("a", 1, 0))
    replayed = {"a": Trajectory.without_log_probs([5, 6], step=0)}
    batch, replayed = completed(batch, replayed, session=2)
    assert torch.isfinite(
        tq.kv_batch_get(keys=["a_2_0"], partition_id=partition)[0]["rollout_log_probs"]
    ).all()
    put_current(batch, {"a_2_0": [-0.25, -0.25]})
    assert ratios(batch, replayed) == {}
    assert not correct.put_recorded(
        batch, rows_of(replayed), replace(KEYS, exp_missing_log_probs=missing)
    )
    assert old_log_probs(batch) == [[-0.25] * 2, [-0.5] * 3, [expected] * 2]


def test_importance_ratios_are_of_replayed_tokens_alone(partition):
    batch = put(partition, group("a", 1, 0) + group("b", 0, 1))
    replayed = {"a": trajectory(5, 6, 7), "b": Trajectory([1], [-1.0], step=1)}
    batch, replayed = completed(batch, replayed, session=2)
    put_current(batch, {"a_2_0": [-1.0, -2.0, -4.0], "b_2_0": [-3.0]})
    assert ratios(batch, replayed) == {"a_2_0": [1.0, 0.0, -2.0], "b_2_0": [-2.0]}
    assert ratios(batch, []) == {} == correct.current_log_probs(batch, {"gone_2_0": trajectory(1)})


def put_current(batch, log_probs):
    """As the actor's pass writes what the current policy gives the responses of these rows, and
    verl after it.
    """
    for key, values in log_probs.items():
        passed = torch.tensor(
            [0.0] * 2 + values + [9.0]
        )  # after the prompt's three tokens, and one ahead
        fields = {
            "log_probs": torch.nested.as_nested_tensor([passed], layout=torch.jagged),
            "old_log_probs": torch.nested.as_nested_tensor(
                [torch.tensor(values)], layout=torch.jagged
            ),
        }
        tq.kv_batch_put(keys=[key], partition_id=batch.partition_id, fields=TensorDict(fields, 1))


def ratios(batch, replayed):
    past = rows_of(replayed)
    found = log_ratios(past, correct.current_log_probs(batch, past))
    return {name: row.tolist() for name, row in found.items()}


def old_log_probs(batch):
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=["old_log_probs"]
    )
    return [row.tolist() for row in data["old_log_probs"].unbind()]


def test_rollout_and_actor_are_compared_in_fresh_rows_alone(partition):
    """They differ by 0.25 and 0 in the fresh rows' log-probs; by much more in the replayed row and
    in padding.
    """
    batch = put(partition, group("a", 1, 0))
    batch, _ = completed(batch, {"a": trajectory(5, 6, 7)}, session=2)
    alone = metrics.debug_metrics(observe.scored_rows(batch, True))
    assert alone["training/rollout_probs_diff_max"] == pytest.approx(np.exp(-0.25) - np.exp(-0.5))
    padded = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    assert metrics.debug_metrics(observe.scored_rows(padded, True)) == pytest.approx(
        alone, nan_ok=True
    )


def test_every_row_carries_its_phase_padding_included(partition):
    batch = put(partition, group("a", 1, 0))
    replayed = {"a": trajectory(5, 6, 7)}
    batch, replayed = completed(batch, replayed, session=2)
    batch = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    for mixed, fresh in ((False, ON_POLICY), (True, FRESH)):
        correct.mark(batch, mixed)
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=partition, select_fields=["rollout_is_weights"]
        )
        codes = [row.tolist() for row in data["rollout_is_weights"].unbind()]
        assert codes == [[fresh] * 2, [fresh] * 3, [REPLAYED] * 3, [fresh]]
    assert batch.tags[2]["is_replayed"] and batch.tags[3]["is_padding"]
