"""A step's work on verl's TransferQueue, on a real queue: rows go in as verl's agent loop writes them."""

import numpy as np
import pytest
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.replay import ExperienceReplay
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import queue_ops as ops
from exgrpo.on_verl.candidate_scoring import SCRATCH, CandidateScorer
from exgrpo.on_verl.first_look import first_response
from exgrpo.on_verl.rows import rollout_groups


def rollout(uid, session, tokens, reward):
    """One row as the agent loop writes it, its old log-probs and entropies as the trainer does."""
    prompt, response = torch.tensor([7, 8, 9]), torch.tensor(tokens)
    ones = torch.ones_like(response)
    scores = torch.zeros(len(tokens))
    scores[-1] = reward
    return {
        "uid": uid,
        "question_id": f"question of {uid}",
        "session_id": session,
        "prompts": prompt,
        "responses": response,
        "response_mask": ones,
        "loss_mask": ones,
        "input_ids": torch.cat([prompt, response]),
        "position_ids": torch.arange(3 + len(tokens)),
        "rm_scores": scores,
        "rollout_log_probs": torch.full((len(tokens),), -0.5),
        "old_log_probs": torch.full((len(tokens),), -0.25 * (session + 1)),
        "entropy": torch.full((len(tokens),), 0.125 * (session + 1)),
        "multi_modal_inputs": {},
        "raw_prompt": [{"role": "user", "content": "?"}],
        "num_turns": 2,
    }


def put(partition, rows):
    keys = [f"{row['uid']}_{row['session_id']}_0" for row in rows]
    tags = [
        {
            "prompt_len": 3,
            "response_len": len(row["responses"]),
            "seq_len": len(row["input_ids"]),
            "min_global_steps": 4,
        }
        for row in rows
    ]
    tags = [tag | {"max_global_steps": 4, "global_steps": 5, "status": "success"} for tag in tags]
    tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(rows), tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id=partition)


def group(uid, *rewards):
    return [rollout(uid, i, [11 + i] * (2 + i), reward) for i, reward in enumerate(rewards)]


def trajectory(*tokens, step=2):
    return Trajectory(np.array(tokens), np.full(len(tokens), -2.0), step=step, entropy=1.0)


class Model:
    """Fills entropy and log_probs of the rows it is given, as the actor does: the entropy of a token is its id."""

    def __init__(self):
        self.calls = []

    def compute_log_prob(self, batch):
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"])
        self.calls.append([row.tolist() for row in data["input_ids"].unbind()])
        entropies = [torch.roll(row.float(), -1) for row in data["input_ids"].unbind()]  # of the token that comes next
        fields = {
            "entropy": torch.nested.as_nested_tensor(entropies, layout=torch.jagged),
            "log_probs": torch.nested.as_nested_tensor([-row for row in entropies], layout=torch.jagged),
        }
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, len(batch)))


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
    assert ops.in_order(batch).keys == ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]


def test_a_uid_without_rollouts_has_no_sibling(partition):
    batch = put(partition, group("a", 1, 0) + group("b", 0))
    (name, sibling), *others = ops.first_siblings(batch, ["b", "gone"]).items()
    assert (name, others) == ("b", []) and ops.first_siblings(batch, ["gone"]) == {}
    assert sibling.row["responses"].tolist() == [11, 11] and sibling.tag is batch.tags[2]
    assert ops.first_siblings(batch, ["a"])["a"].tag is batch.tags[0]


def choose(candidates, model, ranks=1, micro_batch=1, **keys):
    """What replay chooses when the actor is asked by way of the queue."""
    prompts = {question: torch.tensor([7, 8, 9]) for question in candidates}
    scorer = CandidateScorer(prompts, model.compute_log_prob, ranks, micro_batch, 1.0)
    return ExperienceReplay(ExperienceConfig(rollout_n=4, **keys), ()).choose(candidates, scorer)


@pytest.mark.parametrize("metric", ["ent", "ppl"])
def test_candidates_are_scored_in_one_call_and_the_lowest_wins(partition, metric):
    candidates = {
        "a": (trajectory(5, 6), trajectory(3, 4, 5), trajectory(9)),
        "b": (trajectory(1, 1),),
        "c": (trajectory(8, 8), trajectory(2, 3)),
    }
    model = Model()
    choice = choose(candidates, model, ranks=4, exp_metric=metric)
    assert len(model.calls) == 1 and len(model.calls[0]) == 8  # five rivals, repeated up to a multiple of four
    assert choice.scored == 5
    if metric == "ent":
        assert [*choice.chosen_scores, *choice.passed_over_scores] == pytest.approx([4.0, 2.5, 5.5, 9.0, 8.0])
    positions = {"a": 1, "b": 0, "c": 1}
    assert choice.trajectories == {question: candidates[question][at] for question, at in positions.items()}
    assert not (tq.kv_list(SCRATCH) or {}).get(SCRATCH)


@pytest.mark.parametrize(("ranks", "micro_batch"), [(1, 1), (2, 1), (4, 1), (2, 3)])
def test_each_rank_gets_its_share_of_the_tokens_and_each_candidate_its_own_view(partition, ranks, micro_batch):
    """Question a's eight answers are long, b's are short: dealt in that order one rank would have all the long ones."""
    rng = np.random.default_rng(0)
    candidates = {
        question: tuple(Trajectory(rng.integers(1, 99, length), -np.ones(length), step=1) for length in lengths)
        for question, lengths in {"a": range(30, 38), "b": range(2, 10)}.items()
    }
    flat = [(question, each) for question, known in candidates.items() for each in known]
    prompts, model = {question: torch.tensor([7, 8, 9]) for question in candidates}, Model()
    views = CandidateScorer(prompts, model.compute_log_prob, ranks, micro_batch, 1.0)(flat)
    assert [view.entropies.tolist() for view in views] == [each.tokens.tolist() for _, each in flat]
    assert [view.log_probs.tolist() for view in views] == [(-each.tokens).tolist() for _, each in flat]
    (rows,) = model.calls
    assert len(rows) == {(2, 3): 18}.get((ranks, micro_batch), 16)
    share = len(rows) // ranks
    tokens = [sum(map(len, rows[rank * share : (rank + 1) * share])) for rank in range(ranks)]
    assert max(tokens) <= 1.05 * min(tokens)
    if ranks == micro_batch == 1:  # nothing is changed where there is nothing to share
        assert rows == [[7, 8, 9, *each.tokens] for _, each in flat]


def test_only_the_most_promising_candidates_go_through_the_model(partition):
    """Recorded entropies say 3, 1, 2; the model says 5, 8, 6: with two of them left, the third is the best."""
    known = tuple(
        Trajectory([now], [-2.0], step=2, entropy=recorded) for now, recorded in [(5, 3.0), (8, 1.0), (6, 2.0)]
    )
    candidates, model = {"a": known, "b": known[:1]}, Model()
    choice = choose(candidates, model, exp_max_candidates=2)
    assert model.calls == [[[7, 8, 9, 8], [7, 8, 9, 6]]]
    assert choice.trajectories == {"a": known[2], "b": known[0]}
    assert (choice.chosen_scores, choice.passed_over_scores) == ([6.0], [8.0])
    metrics = choice.metrics(step=5)
    assert metrics["candidates"] == 4 and metrics["candidates_scored"] == 2 and metrics["candidates_guarded"] == 0
    assert choose(candidates, model, exp_max_candidates=1).trajectories["a"] is known[1] and len(model.calls) == 1


def test_random_selection_asks_no_model(partition):
    candidates = {"a": tuple(trajectory(n) for n in range(1, 9))}
    model = Model()
    drawn = {choose(candidates, model, exp_metric="random", exp_seed=seed).trajectories["a"].key for seed in range(40)}
    assert len(drawn) > 4 and not model.calls


@pytest.mark.parametrize("metric", ["ent", "random"])
def test_candidates_with_a_small_effective_sample_size_are_passed_over(partition, metric):
    """The model's log-prob of a token is minus its id, the recorded one -2: of 2s the ratios are all 1."""
    lopsided, even = trajectory(2, 12), trajectory(2, 2)  # ratios 1 and exp(-10): one of two tokens counts
    unknown = Trajectory.without_log_probs([1, 9], step=2)
    candidates = {"a": (lopsided, even, unknown), "b": (even,), "c": (lopsided, lopsided)}
    choice = choose(candidates, Model(), exp_metric=metric, exp_min_ess=0.51)
    assert set(choice.trajectories) == {"a", "b"} and choice.trajectories["a"] is not lopsided
    assert (choice.scored, choice.guarded) == (6, 3)
    assert choose(candidates, Model(), exp_metric=metric, exp_min_ess=0.49).guarded == 0


def test_an_injected_row_completes_its_group(partition):
    batch = ops.in_order(put(partition, group("a", 1, 0, 0) + group("b", 0, 1)))
    siblings = ops.first_siblings(batch, ["b"])
    replayed = {"b": trajectory(21, 22, 23, 24)}
    batch = ops.in_order(ops.inject(batch, siblings, replayed, session=2))
    assert batch.keys == ["a_0_0", "a_1_0", "a_2_0", "b_0_0", "b_1_0", "b_2_0"]
    row = tq.kv_batch_get(keys=["b_2_0"], partition_id=partition)[0]
    assert row["responses"].tolist() == [21, 22, 23, 24]
    assert row["input_ids"].tolist() == [7, 8, 9, 21, 22, 23, 24]
    assert row["position_ids"].tolist() == list(range(7))
    assert row["rm_scores"].tolist() == [0, 0, 0, 1]
    assert row["rollout_log_probs"].tolist() == [-2.0] * 4
    assert batch.tags[-1]["seq_len"] == 7 and batch.tags[-1]["max_global_steps"] == 1
    whole = tq.kv_batch_get(keys=batch.keys, partition_id=partition)
    assert len(list(whole["question_id"])) == 6 and set(whole.keys()) >= {"uid", "raw_prompt", "rm_scores"}


def test_a_row_of_a_tools_tokens_keeps_its_mask_and_its_reward(partition):
    batch = put(partition, group("a", 1, 0))
    used = Trajectory([5, 6, 7], [-2.0] * 3, 2, 1.0, [1, 0, 1], 0.75)
    batch = ops.inject(batch, ops.first_siblings(batch, ["a"]), {"a": used}, session=2)
    row = tq.kv_batch_get(keys=["a_2_0"], partition_id=partition)[0]
    assert row["response_mask"].tolist() == row["loss_mask"].tolist() == [1, 0, 1]
    assert row["rm_scores"].tolist() == [0, 0, 0.75]
    rows = ops.scored_rows(batch, False)
    replace_log_probs(batch, "a_2_0", torch.tensor([-1.0, -9.0, -3.0]))
    assert ops.log_ratios(batch, ops.scored_rows(batch, False), {"a": used}).tolist() == [1.0, -1.0]
    assert ops.put_phase(batch, rows, 1.0, 2.0).keys == batch.keys


def test_a_success_is_kept_with_the_mask_of_its_row(partition):
    rows = group("a", 1, 0.75, 0.5)
    rows[1]["response_mask"] = rows[1]["loss_mask"] = torch.tensor([1, 0, 1])
    (found,) = observed(put(partition, rows), {}, 100)
    assert [each.reward for each in found.successes] == [1.0, 0.75] and found.solved == 2
    assert [None if each.loss_mask is None else each.loss_mask.tolist() for each in found.successes] == [
        None,
        [True, False, True],
    ]
    (strict,) = observed(put(partition, group("b", 1, 0.75, 0.5)), {}, 100, threshold=0.9)
    assert strict.solved == 1


def observed(batch, replayed, vocab_size, threshold=0.5):
    fresh = ops.fresh_rows(batch, ops.scored_rows(batch, False))
    return rollout_groups(fresh, replayed, step=5, vocab_size=vocab_size, threshold=threshold)


def test_groups_are_of_fresh_rows_alone(partition):
    batch = put(partition, group("a", 1, 0, 1) + group("b", 0, 1))
    batch = ops.inject(batch, ops.first_siblings(batch, ["b"]), {"b": trajectory(1, 2)}, session=2)
    batch = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    assert len(batch) == 8  # with verl's padding rows
    groups = {found.question: found for found in observed(batch, {"b": trajectory(1, 2)}, 100)}
    assert {name: (found.size, len(found.successes), found.replayed) for name, found in groups.items()} == {
        "question of a": (3, 2, 0),
        "question of b": (2, 1, 1),
    }
    stored = groups["question of a"].successes[1]
    assert stored.tokens.tolist() == [13] * 4 and stored.step == 5
    assert stored.log_probs.tolist() == [-0.75] * 4 and stored.entropy == pytest.approx(0.375)


def test_a_success_that_cannot_be_kept_still_counts_for_difficulty(partition, caplog):
    rows = group("a", 1, 1, 1)
    rows[1]["old_log_probs"][0] = float("nan")
    groups = observed(put(partition, rows), {}, vocab_size=13)  # the third's tokens are 13
    assert [(found.solved, found.refused, len(found.successes)) for found in groups] == [(3, 2, 1)]
    assert "log_probs[0]=nan: must be finite" in caplog.text
    assert "tokens holds 13: must be below 13, the size of the vocabulary" in caplog.text


def test_replayed_rows_get_their_recorded_log_probs_and_fresh_ones_keep_theirs(partition):
    batch = put(partition, group("a", 1, 0))
    replayed = {"a": trajectory(5, 6, 7)}
    batch = ops.inject(batch, ops.first_siblings(batch, ["a"]), replayed, session=2)
    ops.put_recorded_log_probs(batch, replayed, "current")
    assert old_log_probs(batch) == [[-0.25] * 2, [-0.5] * 3, [-2.0] * 3]


@pytest.mark.parametrize(("missing", "expected"), [("current", -0.25), ("one", 0.0)])
def test_log_probs_nobody_recorded_are_what_the_key_says(partition, missing, expected):
    batch = put(partition, group("a", 1, 0))
    replayed = {"a": Trajectory.without_log_probs([5, 6], step=0)}
    batch = ops.inject(batch, ops.first_siblings(batch, ["a"]), replayed, session=2)
    assert torch.isfinite(tq.kv_batch_get(keys=["a_2_0"], partition_id=partition)[0]["rollout_log_probs"]).all()
    replace_log_probs(batch, "a_2_0", torch.full((2,), -0.25))
    assert ops.log_ratios(batch, ops.scored_rows(batch, False), replayed).size == 0
    ops.put_recorded_log_probs(batch, replayed, missing)
    assert old_log_probs(batch) == [[-0.25] * 2, [-0.5] * 3, [expected] * 2]


def test_importance_ratios_are_of_replayed_tokens_alone(partition):
    batch = put(partition, group("a", 1, 0) + group("b", 0, 1))
    replayed = {"a": trajectory(5, 6, 7), "b": Trajectory([1], [-1.0], step=1)}
    batch = ops.inject(batch, ops.first_siblings(batch, ["a", "b"]), replayed, session=2)
    now = torch.nested.as_nested_tensor([torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([-3.0])], layout=torch.jagged)
    tq.kv_batch_put(keys=["a_2_0", "b_2_0"], partition_id=partition, fields=TensorDict({"old_log_probs": now}, 2))
    assert sorted(ops.log_ratios(batch, ops.scored_rows(batch, False), replayed).tolist()) == [-2.0, -2.0, 0.0, 1.0]


def replace_log_probs(batch, key, values):
    """As verl writes the actor's log-probs of one row."""
    fields = {"old_log_probs": torch.nested.as_nested_tensor([values], layout=torch.jagged)}
    tq.kv_batch_put(keys=[key], partition_id=batch.partition_id, fields=TensorDict(fields, 1))


def old_log_probs(batch):
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["old_log_probs"])
    return [row.tolist() for row in data["old_log_probs"].unbind()]


def test_rollout_and_actor_are_compared_in_fresh_rows_alone(partition):
    """They differ by 0.25 and 0 in the fresh rows' log-probs; by much more in the replayed row and in padding."""
    batch = put(partition, group("a", 1, 0))
    batch = ops.inject(batch, ops.first_siblings(batch, ["a"]), {"a": trajectory(5, 6, 7)}, session=2)
    alone = ops.fresh_debug_metrics(batch, ops.scored_rows(batch, True))
    assert alone["training/rollout_probs_diff_max"] == pytest.approx(np.exp(-0.25) - np.exp(-0.5))
    padded = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    assert ops.fresh_debug_metrics(padded, ops.scored_rows(padded, True)) == pytest.approx(alone, nan_ok=True)


def test_every_row_carries_its_phase_padding_included(partition):
    batch = put(partition, group("a", 1, 0))
    replayed = {"a": trajectory(5, 6, 7)}
    batch = ops.inject(batch, ops.first_siblings(batch, ["a"]), replayed, session=2)
    batch = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    batch = ops.put_phase(batch, ops.scored_rows(batch, False), fresh=1.0, replayed=2.0)
    data = tq.kv_batch_get(keys=batch.keys, partition_id=partition, select_fields=["rollout_is_weights"])
    assert [row.tolist() for row in data["rollout_is_weights"].unbind()] == [[1.0] * 2, [1.0] * 3, [2.0] * 3, [1.0]]
    assert batch.tags[2]["is_replayed"] and batch.tags[3]["is_padding"]
