"""Which question, which past group, which success: rules with what is remembered of questions, and
losses with the age and the group of a row.
"""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory, compute_grpo_loss
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.question_memory import QuestionMemory, group_weights
from exgrpo.experience.trajectory_selector import TokenScores
from exgrpo.loss_settings import LossSettings
from exgrpo.on_verl import correct
from exgrpo.on_verl.queue import Batch
from exgrpo.preflight import user_rules
from exgrpo.saved.pool_files import read_groups, read_manifest, read_memory
from exgrpo.saved.pool_folder import PoolFolder

RULES = """
import torch
class Counting:
    seen = 0
    def __call__(self, questions, step):
        return 1.0 + (questions.visits + self.seen) % 3
    def observe(self, step, groups):
        self.seen += len(groups)
    def state(self):
        return [self.seen]
    def restore(self, state):
        self.seen = state[0]
def only_bucket_two(questions, step):
    return questions.bucket == 2
def negative(groups, step):
    return groups.solved - 2
def first_token(trajectory):
    return int(trajectory.tokens[0])
def aged(log_ratio, log_prob, advantages, replayed, settings, rows):
    return (rows.age + 100.0 * rows.group) * torch.exp(log_ratio)
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "my_rules.py").write_text(RULES)
    return lambda name: f"{tmp_path}/my_rules.py:{name}"


def rollout(reward, step=1, token=0):
    return Trajectory([token, 1], [-1.0, -2.0], step, 0.5, reward=float(reward))


def group(question, *rewards, step=1):
    rollouts = [rollout(reward, step, token) for token, reward in enumerate(rewards)]
    solved = tuple(one for one in rollouts if one.reward > 0.5)
    others = tuple(one for one in rollouts if one.reward <= 0.5)
    return RolloutGroup(question, len(rewards), solved, failures=others)


def stored(question, *rewards, step=1):
    return StoredGroup(question, step, tuple(rollout(reward, step) for reward in rewards))


def replay_of(questions, **keys):
    config = ExperienceConfig(4, experience_start_sratio=0, **keys)
    names = iter([(name, False) for name in questions] * 999)
    return ExperienceReplay(config, list(questions)), lambda: next(names)


# -- past groups --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uniform", [1, 1, 1]),
        ("headroom", [0.75, 0.25, 0.5]),  # of the newest fresh group; of "c" its own
        ("age", [1 / 9, 1 / 6, 1]),
        ("advantage", [0.5, 0.375, 0.5]),
    ],
)
def test_the_weights_of_past_groups(name, expected):
    groups = [
        stored("a", 1, 1, 0, 0, step=2),
        stored("b", 1, 0, 0, 0, step=5),
        stored("c", 1, 0, 1, 0, step=10),
    ]
    memory = QuestionMemory()
    memory.observe([group("a", 1, 0, 0, 0), group("b", 1, 1, 1, 0)], step=9)
    assert group_weights(name, groups, memory, 0.5, step=10).tolist() == pytest.approx(expected)


def test_equal_weights_draw_what_no_weights_draw_and_zero_is_never_drawn():
    replay, _ = replay_of("abcdefgh", exp_unit="group")
    replay.groups.hold([stored(name, 1, 0) for name in "abcdefgh"])
    both = [
        replay.groups.choose(5, np.random.default_rng(3), weights=weights)
        for weights in (None, np.full(8, 0.25))
    ]
    assert both[0] == both[1]
    odd = np.array([1.0, 0] * 4)
    chosen = replay.groups.choose(8, np.random.default_rng(3), weights=odd)
    assert {one.question for one in chosen} == set("aceg")


def test_weights_are_the_odds_of_a_draw():
    replay, _ = replay_of("abc", exp_unit="group")
    replay.groups.hold([stored(name, 1, 0) for name in "abc"])
    rng, weights = np.random.default_rng(0), np.array([1.0, 2, 5])
    drawn = [replay.groups.choose(1, rng, weights=weights)[0].question for _ in range(4000)]
    assert [drawn.count(name) / 4000 for name in "abc"] == pytest.approx(weights / 8, abs=0.02)


def test_by_headroom_a_question_that_is_solved_today_is_not_drawn():
    replay, following = replay_of("abcdef", exp_unit="group", exp_group_choice="headroom")
    replay.observe(1, [group(name, 1, 0, 0, 0) for name in "abcd"], {})
    replay.observe(2, [group(name, 1, 1, 1, 1, step=2) for name in "abc"], {})
    drawn = replay.draw(3, 4, following)
    assert [one.question for one in drawn.stored] == ["d"] and len(drawn.fresh) == 3


def test_what_has_drifted_away_is_replaced_until_the_budget_is_full():
    keys = {"exp_unit": "group", "exp_max_drift": 0.1}
    for name, admitted in (("uniform", 0), ("age", 2)):
        replay, following = replay_of("efghabcd", exp_group_choice=name, **keys)
        replay.groups.hold([stored(name, 1, 0) for name in "abcd"])
        drawn = replay.draw(2, 4, following)
        away, calls = {one.question for one in drawn.stored}, []

        def score(candidates, away=away, calls=calls):
            calls.append([question for question, _ in candidates])
            shift = [2.0 if question in away else 0.0 for question, _ in candidates]
            return [
                TokenScores(np.ones(2), one.log_probs + by)
                for (_, one), by in zip(candidates, shift, strict=True)
            ]

        found = {one.question for one in replay.admit(drawn.stored, score)}
        assert len(found) == admitted and not found & ({*drawn.fresh} | away)
        assert len(calls) == 1 + (name != "uniform") and len(replay.groups) == 2


# -- questions ----------------------------------------------------------------------------------


def test_the_question_that_waits_longest_is_the_likeliest():
    replay, following = replay_of(
        "abcdefgh", exp_question_choice="longest_ago", experience_ratio=0.25
    )
    replay.observe(1, [group(name, 1, 0, 0, 0) for name in "abcd"], {})
    counts = dict.fromkeys("abcd", 0)
    for step in range(2, 402):
        (question,) = replay.draw(step, 4, following, in_flight=()).replayed
        counts[question] += 1
    assert min(counts.values()) > 80
    last = replay.memory.columns(["a", "b", "c", "d"])[:, 1]
    assert sorted(last)[-1] == 401 and sorted(last)[0] > 380


def test_what_is_remembered_of_a_question():
    memory = QuestionMemory()
    memory.observe([group("a", 1, 0, 0, 0), group("b", 0, 0)], 3)
    memory.observe([group("a", 0, 0, 0, 0)], 5)
    memory.drawn(["a"], 6)
    assert memory.columns(["a", "b"]).tolist() == [[2, 6, 3, 0], [1, -1, -1, 0]]
    assert memory.columns(["x"]).tolist()[0][:3] == [0, -1, -1]


def test_a_rule_sees_buckets_and_may_forbid(mine):
    replay, following = replay_of("abcdefgh", exp_question_choice=mine("only_bucket_two"))
    replay.observe(1, [group("a", 1, 0, 0, 0), group("b", 1, 1, 0, 0)], {})
    drawn = replay.draw(2, 4, following)
    assert drawn.replayed == ["b"]
    assert replay.state()["odds"] == {"b": (2, 1.0, 1, 1)}


@pytest.mark.parametrize("unit", ["trajectory", "group"])
def test_a_rule_with_memory_resumed_draws_what_the_uninterrupted_run_draws(mine, tmp_path, unit):
    keys = {"exp_unit": unit, "exp_question_choice": mine("Counting"), "exp_group_choice": "age"}
    names = [f"q{number}" for number in range(30)]
    order = np.random.default_rng(1).permutation(names * 9).tolist()

    def play(replay, first, last):
        drawn_in_all, world = [], np.random.default_rng(first)
        for step in range(first, last):
            at = iter(order[step * 13 :])
            drawn = replay.draw(step, 6, lambda at=at: (next(at), False))
            past = [*drawn.replayed, *(one.question for one in drawn.stored)]
            replay.choose(
                replay.candidates(drawn.replayed), lambda all_: [score(one) for one in all_]
            )
            replay.admit(drawn.stored, None)
            world = np.random.default_rng(step)
            rewards = [(name, world.integers(0, 2, 3).tolist()) for name in drawn.fresh]
            replay.observe(step, [group(name, *each, step=step) for name, each in rewards], {})
            drawn_in_all.append((past, drawn.fresh))
        return drawn_in_all

    def score(candidate):
        return TokenScores(candidate[1].tokens.astype(float), candidate[1].log_probs)

    whole, _ = replay_of(names, **keys)
    expected = play(whole, 1, 20)
    half, _ = replay_of(names, **keys)
    assert play(half, 1, 10) == expected[:9]
    folder = tmp_path / "pool"
    PoolFolder().save(half.pool, folder, 9, {}, half.state(), half.groups, half.memory)
    state = read_manifest(folder)["replay_state"]
    assert state["question_choice"] == [half._by_rule.state()[0]] and state["question_choice"][0]
    resumed = ExperienceReplay(half.config, names, PoolFolder().load(folder, half.config, 9, {}))
    resumed.restore(state)
    resumed.groups.hold(read_groups(folder))
    resumed.memory.hold(*read_memory(folder))
    assert play(resumed, 10, 20) == expected[9:]
    assert any(past for past, _ in expected[9:])
    assert set(pq.read_table(folder / "memory.parquet").column_names) == {
        *("question", "visits", "last_draw", "newest_success", "solved")
    }


def test_without_such_a_rule_nothing_is_remembered_or_saved(tmp_path):
    replay, following = replay_of("abcdefgh")
    replay.observe(1, [group(name, 1, 0, 0, 0) for name in "abcd"], {})
    replay.draw(2, 4, following)
    assert not replay.memory and "question_choice" not in replay.state()
    PoolFolder().save(replay.pool, tmp_path / "pool", 1, {}, None, (), replay.memory)
    assert not (tmp_path / "pool" / "memory.parquet").exists()
    assert read_memory(tmp_path / "pool")[0] == []


@pytest.mark.parametrize(
    ("key", "name", "said"),
    [
        ("exp_group_choice", "negative", "returns array"),
        ("exp_question_choice", "first_token", "must take the arguments"),
        ("exp_group_choice", "oldest", "must be one of uniform, headroom, age, advantage, or"),
        ("exp_question_choice", "seldom", "must be one of longest_ago, bucket, or"),
        ("exp_same", "text", "must be one of tokens, bag, or"),
    ],
)
def test_a_wrong_rule_is_named_before_anything_runs(mine, key, name, said):
    value = name if f" {name}(" not in RULES else mine(name)
    with pytest.raises(ValueError, match=f"^trainer.{key}=.*{said}"):
        user_rules.verify_rules(ExperienceConfig(4, **{key: value}), LossSettings())


def test_weights_that_are_none_end_the_draw_in_one_line(mine):
    replay, following = replay_of("abcdef", exp_unit="group", exp_group_choice=mine("negative"))
    replay.groups.hold([stored("a", 1, 0)])
    with pytest.raises(ValueError, match=r"returned \[-1\.5\]: must be 1 finite weights of 0"):
        replay.draw(2, 4, following)


# -- successes ----------------------------------------------------------------------------------


def test_what_is_the_same_success(mine):
    def kept(**keys):
        pool = ExperiencePool(ExperienceConfig(4, **keys))
        for step, tokens in enumerate([(1, 2), (2, 1), (1, 3), (1, 2)]):
            one = Trajectory(tokens, [-1.0, -1.0], step)
            pool.observe(RolloutGroup("a", 4, (one,)))
        found = [(one.step, *one.tokens.tolist()) for one in pool.candidates("a")]
        return found, pool.metrics()["duplicates"]

    assert kept() == ([(1, 2, 1), (2, 1, 3), (3, 1, 2)], 1)
    assert kept(exp_same="bag") == ([(2, 1, 3), (3, 1, 2)], 2)
    assert kept(exp_same=mine("first_token")) == ([(1, 2, 1), (3, 1, 2)], 2)
    assert kept(exp_eviction="newest", experience_max_per_question=1)[0] == [(3, 1, 2)], (
        "the first success, recorded again"
    )


# -- age and group of a row for a loss ----------------------------------------------------------


def test_a_loss_that_asks_for_rows_gets_age_and_group_through_the_trainers_codes(mine):
    keys = ["a_0_0", "as00000_0_0", "as00000_1_0", "b_3_0"]
    tags = [{"is_replayed": key != "a_0_0", "max_global_steps": 11} for key in keys]
    tags[3]["max_global_steps"] = 2
    batch = Batch(keys=keys, tags=tags, partition_id="none")
    tags = batch.tags
    correct.number(batch, 20, LossSettings(off_policy_loss="topr"))
    assert [correct.code_of(tag, True) for tag in tags[1:]] == [correct.REPLAYED] * 3
    asks = LossSettings(off_policy_loss=mine("aged"))
    correct.number(batch, 20, asks)
    phase = torch.tensor([[correct.code_of(tag, True)] * 2 for tag in tags])
    assert correct.is_replayed(phase).tolist() == [[False] * 2] + [[True] * 2] * 3
    assert correct.weights_of(phase).tolist() == [[1.0] * 2] * 4
    rows = correct.rows_of(phase)
    assert rows.age[1:].tolist() == [[8], [8], [17]] and rows.group[1:].tolist() == [[0], [0], [1]]
    far = Batch(keys=["c_0_0"], tags=[tags[3] | {"max_global_steps": -1}], partition_id="none")
    correct.number(far, 10**6, asks)
    code = torch.tensor([[far.tags[0]["replay_code"]]])
    assert correct.rows_of(code).age.item() == 2047 and correct.is_replayed(code).all()


def test_a_loss_that_asks_for_rows_gets_them_in_a_loop_of_ones_own(mine):
    log_prob = torch.zeros(3, 1, requires_grad=True)
    batch = {
        "log_prob": log_prob,
        "old_log_prob": torch.zeros(3, 1),
        "response_mask": torch.ones(3, 1),
        "group": ["x", "y", "y"],
        "is_replayed": torch.tensor([False, True, True]),
    }
    settings = LossSettings(off_policy_loss=mine("aged"))
    with pytest.raises(ValueError, match=r"takes rows, of which no ages and groups are given$"):
        compute_grpo_loss(batch, torch.tensor([0.0, 1.0, 0.0]), settings=settings)
    loss = compute_grpo_loss(
        batch | {"age": [0, 3, 4]}, torch.tensor([0.0, 1.0, 0.0]), settings=settings
    )
    assert float(loss.detach()) == pytest.approx((103 + 104) / 3)
