"""Candidates through the actor by way of a real queue: one call, shared out evenly, each with its
own view.
"""

import numpy as np
import pytest
import torch
import transfer_queue as tq
from composed import job
from queue_rows import Model, trajectory

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_trainer_ops import ExperienceReplay
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl.complete import SCRATCH, CandidateScorer

ROLLOUT = "actor_rollout_ref.rollout"


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
    assert (
        len(model.calls) == 1 and len(model.calls[0]) == 8
    )  # five rivals, repeated up to a multiple of four
    assert choice.scored == 5
    if metric == "ent":
        assert [*choice.chosen_scores, *choice.passed_over_scores] == pytest.approx(
            [4.0, 2.5, 5.5, 9.0, 8.0]
        )
    positions = {"a": 1, "b": 0, "c": 1}
    assert choice.trajectories == {
        question: candidates[question][at] for question, at in positions.items()
    }
    assert not (tq.kv_list(SCRATCH) or {}).get(SCRATCH)


@pytest.mark.parametrize(("ranks", "micro_batch"), [(1, 1), (2, 1), (4, 1), (2, 3)])
def test_each_rank_gets_its_share_of_the_tokens_and_each_candidate_its_own_view(
    partition, ranks, micro_batch
):
    """Question a's eight answers are long, b's are short: dealt in that order one rank would have
    all the long ones.
    """
    rng = np.random.default_rng(0)
    candidates = {
        question: tuple(
            Trajectory(rng.integers(1, 99, length), -np.ones(length), step=1) for length in lengths
        )
        for question, lengths in {"a": range(30, 38), "b": range(2, 10)}.items()
    }
    flat = [(question, each) for question, known in candidates.items() for each in known]
    prompts, model = {question: torch.tensor([7, 8, 9]) for question in candidates}, Model()
    views = CandidateScorer(prompts, model.compute_log_prob, ranks, micro_batch, 1.0)(flat)
    assert [view.entropies.tolist() for view in views] == [each.tokens.tolist() for _, each in flat]
    assert [view.log_probs.tolist() for view in views] == [
        (-each.tokens).tolist() for _, each in flat
    ]
    (rows,) = model.calls
    assert len(rows) == {(2, 3): 18}.get((ranks, micro_batch), 16)
    share = len(rows) // ranks
    tokens = [sum(map(len, rows[rank * share : (rank + 1) * share])) for rank in range(ranks)]
    assert max(tokens) <= 1.05 * min(tokens)
    if ranks == micro_batch == 1:  # nothing is changed where there is nothing to share
        assert rows == [[7, 8, 9, *each.tokens] for _, each in flat]


def test_candidates_are_scored_at_the_temperature_of_the_rollouts(partition):
    rollout, model = (
        job(f"{ROLLOUT}.temperature=0.5", f"{ROLLOUT}.log_prob_use_dynamic_bsz=True"),
        Model(),
    )
    scorer = CandidateScorer.of(
        {"a": torch.tensor([7, 8, 9])}, model, rollout.actor_rollout_ref.rollout
    )
    (view,) = scorer([("a", trajectory(5, 6))])
    assert view.log_probs.tolist() == [-10, -12] and view.entropies.tolist() == [5, 6]


def test_random_selection_asks_no_model(partition):
    candidates = {"a": tuple(trajectory(n) for n in range(1, 9))}
    model = Model()
    drawn = {
        choose(candidates, model, exp_metric="random", exp_seed=seed).trajectories["a"].key
        for seed in range(40)
    }
    assert len(drawn) > 4 and not model.calls


@pytest.mark.parametrize("metric", ["ent", "random"])
def test_candidates_from_which_the_policy_has_drifted_are_passed_over(partition, metric):
    """The model's log-prob of a token is minus its id, the recorded one -2: of 2s the ratios are
    all 1.
    """
    lopsided, even = (
        trajectory(2, 12),
        trajectory(2, 2),
    )  # log-ratios 0 and -10: a mean square of 50
    unknown = Trajectory.without_log_probs([1, 9], step=2)
    candidates = {"a": (lopsided, even, unknown), "b": (even,), "c": (lopsided, lopsided)}
    choice = choose(candidates, Model(), exp_metric=metric, exp_max_drift=49)
    assert set(choice.trajectories) == {"a", "b"} and choice.trajectories["a"] is not lopsided
    assert (choice.scored, choice.guarded) == (6, 3)
    assert choose(candidates, Model(), exp_metric=metric, exp_max_drift=51).guarded == 0
