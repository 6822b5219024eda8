"""Retired questions that are asked again, and a difficulty band that follows the policy."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.replay import ExperienceReplay
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.inspect import quarantine
from exgrpo.saved.pool_folder import PoolFolder

K = 4
QUESTIONS = [f"q{n}" for n in range(20)]
IDENTITY = {"data_fingerprint": "d", "tokenizer": "t", "questions": len(QUESTIONS)}


def new_replay(**keys):
    return ExperienceReplay(ExperienceConfig(rollout_n=K, experience_start_sratio=0, **keys), QUESTIONS)


def group(question, solved, step=1, size=K, replayed=0):
    return RolloutGroup(
        question, size, tuple(Trajectory([step, n], [-1.0, -1.0], step) for n in range(solved)), replayed=replayed
    )


class Data:
    """The questions in order, epoch after epoch, from a place on."""

    def __init__(self, place=0):
        self.place = place

    def __call__(self):
        epoch, place = divmod(self.place, len(QUESTIONS))
        self.place += 1
        return QUESTIONS[place], epoch > 0 and place == 0


def step(replay, number, solved, data, size=4):
    """One step; `solved` says how many rollouts of a question are correct."""
    drawn = replay.draw(number, size, data)
    groups = [group(question, solved(question, number), number) for question in drawn.fresh]
    mixed = [group(q, min(solved(q, number), K - 1), number, K - 1, 1) for q in drawn.replayed]
    return drawn, replay.observe(number, groups + mixed, {})


def test_a_share_of_the_fresh_questions_is_retired_ones_and_none_is_in_the_step_twice():
    replay, data, asked = new_replay(exp_review_share=0.25, experience_ratio=0.0), Data(), 0
    replay.observe(1, [group(question, K) for question in QUESTIONS[:10]], {})
    for number in range(2, 402):
        drawn, metrics = step(replay, number, lambda question, _: K if question in QUESTIONS[:10] else 0, data, 3)
        assert len(set(drawn.fresh)) == len(drawn.fresh) == 3
        assert metrics["reviewed"] >= sum(question in QUESTIONS[:10] for question in drawn.fresh) - 3 * (number < 9)
        asked += metrics["reviewed"] if number > 9 else 0  # in the first epoch the data's own order has them too
        assert metrics["retired_questions"] == 10 and metrics["returned"] == 0
    assert asked / 392 / 3 == pytest.approx(0.25, abs=0.03)


def test_what_is_in_the_step_or_in_flight_is_not_reviewed():
    for seed in range(20):
        replay, data = new_replay(exp_review_share=0.5, exp_seed=seed), Data()
        replay.observe(1, [group(question, K) for question in QUESTIONS], {})
        both = [*replay.draw(2, 10, data).fresh, *replay.draw(2, 8, data).fresh]
        assert len(set(both)) == 18
        ahead = replay.draw(3, 6, data, in_flight=both[:14]).fresh
        assert len({*ahead, *both[:14]}) == 20


def test_a_question_that_is_no_longer_all_solved_returns_is_filed_and_may_retire_again():
    replay = new_replay(exp_review_share=0.5)
    replay.observe(1, [group("q0", K), group("q1", K), group("q2", K)], {})
    metrics = replay.observe(2, [group("q0", 2, 2), group("q1", 0, 2), group("q2", K, 2)], {})
    assert (metrics["reviewed"], metrics["returned"], metrics["retired_questions"]) == (3, 2, 1)
    assert replay.pool.retired == ["q2"] and replay.pool.bucket("q0") == 2 and "q1" not in replay.pool
    assert len(replay.pool.candidates("q0")) == 2
    replay.observe(3, [group("q0", K, 3)], {})
    assert replay.pool.retired == ["q2", "q0"] and replay.pool.trajectories == 0
    replay.pool.check_invariants()


def test_a_group_that_lost_rollouts_and_has_no_wrong_one_ends_no_retirement():
    replay = new_replay(exp_review_share=0.5)
    replay.observe(1, [group(question, K) for question in ("q0", "q1", "q2")], {})
    lost = [group("q0", K - 1, 2, K - 1), group("q1", K - 2, 2, K - 2, 1), group("q2", K - 2, 2, K - 1)]
    metrics = replay.observe(2, lost, {})
    assert (metrics["reviewed"], metrics["returned"]) == (3, 1)
    assert replay.pool.retired == ["q0", "q1"] and replay.pool.bucket("q2") == 3  # one of q2's was wrong
    replay.pool.check_invariants()


def test_without_the_key_questions_are_retired_for_good_and_no_figure_is_added():
    replay = new_replay()
    replay.observe(1, [group("q0", K)], {})
    before = replay.rng.bit_generator.state
    metrics = replay.observe(2, [group("q0", 1, 2)], {})
    assert replay.pool.retired == ["q0"] and not {"reviewed", "returned", "bucket_mean"} & metrics.keys()
    assert set(replay.state()) == {"mixing", "rng", "deferred", "skipped"}
    replay.draw(3, 4, Data())
    assert replay.rng.bit_generator.state == before  # nothing to replay, nothing to review


def test_a_question_that_returns_is_in_the_epoch_again():
    replay, data = new_replay(exp_review_share=0.25, experience_ratio=0.0), Data()
    replay.observe(1, [group(question, K) for question in QUESTIONS[:18]], {})
    data.place = 20  # a new epoch begins, without the 18
    drawn = replay.draw(2, 2, data)
    assert set(drawn.fresh) - set(QUESTIONS[:18])
    assert replay.state()["skipped"] == 18
    replay.observe(2, [group("q7", 0, 2), group("q16", 0, 2)], {})
    assert replay.state()["skipped"] == 16
    rest = replay._fresh.take(3, (), data)
    assert {"q7", "q16"} <= {*rest, *replay.draw(3, 6, data).fresh}


@pytest.mark.parametrize("keys", [{"exp_review_share": 0.3}, {"exp_bucket_mean": "batch"}])
def test_a_resumed_run_reviews_and_draws_as_the_unbroken_one(tmp_path, keys):
    def solved(question, number):
        """All at first, so that most are retired; later each question anything from none to all."""
        return K if number < 4 else (int(question[1:]) * 7 + number * 3) % (K + 1)

    def play(replay, data, numbers):
        return [step(replay, number, solved, data) for number in numbers]

    unbroken, data = new_replay(**keys), Data()
    play(unbroken, data, range(1, 25))
    state = json.loads(json.dumps(unbroken.state()))
    PoolFolder().save(unbroken.pool, tmp_path / "pool", 24, IDENTITY)
    pool = PoolFolder().load(tmp_path / "pool", unbroken.config, 24, IDENTITY)
    resumed, again = ExperienceReplay(unbroken.config, QUESTIONS, pool), Data(data.place)
    resumed.restore(state)
    steps = play(unbroken, data, range(25, 60))
    assert play(resumed, again, range(25, 60)) == steps
    assert len({metrics.get("returned", metrics.get("bucket_mean")) for _, metrics in steps}) > 1


def test_a_run_with_reviews_does_not_end_when_all_are_retired():
    for share, ends in ((0.0, True), (0.1, False)):
        replay = new_replay(exp_review_share=share)
        replay.observe(1, [group(question, K) for question in QUESTIONS], {})
        assert replay.exhausted is ends


def test_the_centre_moves_a_tenth_of_the_way_to_the_partly_solved_questions():
    replay = new_replay(exp_bucket_mean="batch")
    metrics = replay.observe(1, [group("q0", 1), group("q1", 3), group("q2", 0), group("q3", K)], {})
    assert metrics["bucket_mean"] == 0.5  # of 1/4 and 3/4
    metrics = replay.observe(2, [group("q0", 1, 2)], {})
    assert metrics["bucket_mean"] == pytest.approx(0.475)
    assert replay.observe(3, [group("q4", 0, 3)], {})["bucket_mean"] == pytest.approx(0.475)


def test_groups_of_replayed_questions_move_the_centre_by_their_fresh_rollouts():
    replay = new_replay(exp_bucket_mean="batch")
    metrics = replay.observe(1, [group("q0", 1, size=K - 1, replayed=1), group("q1", 3)], {})
    assert metrics["bucket_mean"] == pytest.approx(0.5 + 0.1 * ((1 / 3 + 3 / 4) / 2 - 0.5))
    metrics = replay.observe(2, [group("q0", K - 1, 2, size=K - 1, replayed=1)], {})  # nothing but right answers
    assert metrics["bucket_mean"] == pytest.approx(0.5 + 0.1 * ((1 / 3 + 3 / 4) / 2 - 0.5))


@pytest.mark.parametrize(("solved", "nearer"), [(1, "q0"), (3, "q1")])
def test_questions_of_the_bands_difficulty_are_drawn(solved, nearer):
    replay = new_replay(exp_bucket_mean="batch", exp_bucket_sigma=0.5)
    for number in range(1, 60):
        replay.observe(number, [group("q9", solved, number)], {})
    replay.observe(60, [group("q0", 1, 60), group("q1", 3, 60)], {})
    drawn = [replay.pool.choose(1, np.random.default_rng(seed), exclude={"q9"})[0] for seed in range(100)]
    assert drawn.count(nearer) > 95


def test_a_quarantine_does_not_guess_which_questions_were_retired_when_some_have_returned():
    saved = SimpleNamespace(
        history=[{"retired_questions": 2.0, "returned": 1.0}], state=SimpleNamespace(retired=["q0"])
    )
    (line,) = quarantine._retired(saved, None)
    assert "is not known" in line and "trainer.exp_review_share" in line
