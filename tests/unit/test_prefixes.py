"""Prefixes: a stored rollout is cut, today's policy goes on from there, and the cut moves."""

import asyncio
import json

import numpy as np
import pytest
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from exgrpo import ExperienceConfig, ExperienceReplay, RolloutGroup, Trajectory
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.prefixes import Prefixes, column
from exgrpo.on_verl.agent_loop import PrefixAgentLoop
from exgrpo.on_verl.observe import FreshRow, rollout_groups

K = 4
CONFIG = ExperienceConfig(K, exp_unit="prefix", experience_start_sratio=0)


def rollout(reward, token=0, length=10, step=1):
    return Trajectory([token, *range(1, length)], [-1.0] * length, step, 0.5, reward=float(reward))


def stored(question, *rewards, length=10):
    return StoredGroup(
        question, 1, tuple(rollout(reward, at, length) for at, reward in enumerate(rewards))
    )


def group(question, *rewards, prefix=0):
    solved = tuple(rollout(1, at) for at, reward in enumerate(rewards) if reward)
    failed = tuple(rollout(0, at) for at, reward in enumerate(rewards) if not reward)
    return RolloutGroup(
        question, len(rewards), solved, failures=failed, rewards=rewards, prefix=prefix
    )


def test_successes_of_what_mostly_fails_failures_of_the_rest_and_the_cut_moves():
    prefixes, rng, seen = Prefixes(), np.random.default_rng(0), []
    mixed = stored("a", 1, 0, 0, 0)
    for solved, continuations in [
        (0.0, (0, 0, 0, 0)),  # too hard: more of the success
        (0.25, (1, 1, 1, 0)),  # too easy: less
        (0.25, (1, 1, 0, 0)),  # half right: as it is
        (0.75, (1, 1, 1, 1)),  # solved now: a failure, cut in the middle; too easy: more of it
        (1.0, (0, 0, 0, 0)),  # too hard: less
        (1.0, (1, 0, 1, 0)),
    ]:
        prefix = prefixes.cut(mixed, solved, 0.5, rng)
        first = int(prefix.tokens[0])
        assert (first == 0) == prefix.of_success, "of the right rollout, or of a wrong one"
        seen.append((prefix.of_success, len(prefix.tokens)))
        prefixes.observe([group("a", *continuations, prefix=len(prefix.tokens))])
    assert seen == [(True, 5), (True, 7), (True, 6), (False, 5), (False, 7), (False, 5)], "golden"
    for _ in range(9):
        prefixes.observe([group("a", 1, 1, 1, 1, prefix=1)])
    assert prefixes.share("a") == 0.9


def test_a_prefix_leaves_at_least_one_token_and_has_one():
    prefixes, rng = Prefixes(), np.random.default_rng(0)
    assert len(prefixes.cut(stored("a", 1, 0, length=2), 0.0, 0.5, rng).tokens) == 1
    assert prefixes.cut(stored("b", 1, 0, length=1), 0.0, 0.5, rng) is None


def test_a_share_of_the_questions_goes_on_from_a_prefix_and_says_nothing_of_the_question():
    replay, names = ExperienceReplay(CONFIG, list("abcdefgh")), iter("abcdefgh" * 9)
    replay.observe(1, [group(name, 1, 0, 0, 0) for name in "efgh"], {})
    drawn = replay.draw(2, 4, lambda: (next(names), False))
    assert len(drawn.prefixes) == 2 and list(drawn.prefixes) == drawn.fresh[:2]
    assert drawn.fresh[2:] == ["a", "b"] and not drawn.replayed and not drawn.stored
    texts = column([*drawn.fresh], drawn.prefixes).tolist()
    assert texts == ["0 1 2 3 4"] * 2 + [""] * 2
    before = {name: replay.pool.bucket(name) for name in drawn.prefixes}
    found = [group(name, 1, 1, 1, 0, prefix=5) for name in drawn.prefixes]
    found += [group("a", 0, 0, 0, 0), group("b", 0, 0, 0, 0)]
    measured = replay.observe(2, found, {})
    assert measured["fresh_score"] == 0 and measured["prefix_score"] == 0.75
    assert measured["prefix_groups"] == 2 and measured["prefix_share"] == 0.375
    assert {name: replay.pool.bucket(name) for name in before} == before
    assert len(replay.groups) == 4, "no continuation is stored"
    assert replay.memory.columns(list(before))[:, 0].tolist() == [1, 1]


def test_resumed_it_cuts_where_it_would_have_cut():
    def play(resumes):
        replay, names, seen = ExperienceReplay(CONFIG, list("abcdefgh")), iter("abcdefgh" * 99), []
        replay.observe(1, [group(name, 1, 0, 0, 1) for name in "efgh"], {})
        for step in range(2, 14):
            if resumes and step == 7:
                state = json.loads(json.dumps(replay.state()))
                kept, replay = replay, ExperienceReplay(CONFIG, list("abcdefgh"), replay.pool)
                replay.restore(state)
                replay.groups.hold(kept.groups)
                known = kept.memory.questions()
                replay.memory.hold(known, kept.memory.columns(known))
            drawn = replay.draw(step, 4, lambda: (next(names), False))
            seen.append([(q, p.of_success, p.tokens.tolist()) for q, p in drawn.prefixes.items()])
            world = np.random.default_rng(step)
            found = []
            for name in drawn.fresh:
                rewards = world.integers(0, 2, K).tolist()
                length = len(drawn.prefixes[name].tokens) if name in drawn.prefixes else 0
                found.append(group(name, *rewards, prefix=length))
            replay.observe(step, found, {})
        return seen

    whole = play(False)
    assert play(True) == whole and len({len(p) for step in whole for _, _, p in step}) > 2


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"exp_place": "dead"}, "trainer.exp_place=dead: must be share"),
        ({"exp_place": "beside"}, "trainer.exp_place=beside: must be share"),
        ({"exp_rescue": True}, "trainer.exp_rescue=True: must be False with trainer.exp_unit=pre"),
        ({"experience_ratio": 1}, "experience_ratio=1: must be below 1 with trainer.exp_unit=pre"),
    ],
)
def test_what_does_not_go_with_it_is_named(keys, said):
    with pytest.raises(ValueError, match=said):
        ExperienceConfig(K, exp_unit="prefix", **keys)


# -- in verl --------------------------------------------------------------------------------------


def test_rows_that_begin_masked_are_a_group_with_a_prefix():
    def row(uid, mask):
        numbers = np.zeros(len(mask), np.float32)
        ids = np.arange(len(mask), dtype=np.int32)
        return FreshRow(uid, f"q{uid}", 1.0, ids, numbers, numbers, np.array(mask))

    rows = [row("a", [0, 0, 1, 1]), row("a", [0, 0, 1]), row("b", [1, 1])]
    found = rollout_groups(rows, [], 3, 99, CONFIG)
    assert [(each.question, each.prefix) for each in found] == [("qa", 2), ("qb", 0)]
    assert found[0].successes[0].loss_mask.tolist() == [False, False, True, True]
    plain = ExperienceConfig(K)
    assert [each.prefix for each in rollout_groups(rows, [], 3, 99, plain)] == [0, 0]


class Engine(PrefixAgentLoop):
    """verl's loop but for its engine and its tokenizer."""

    response_length, asked = 6, None

    def __init__(self):
        pass


async def generated(self, sampling_params, priority=0, **kwargs):
    """Instead of verl's own `run`: asks for the prompt's tokens as that does, and "generates"."""
    prompt = await self.ct_build_initial_tokens([])
    self.asked = prompt, sampling_params
    return AgentLoopOutput(
        prompt_ids=prompt,
        response_ids=[50, 51],
        response_mask=[1, 1],
        response_logprobs=[-0.5, -0.25],
        metrics=AgentLoopMetrics(),
    )


async def built(self, *args, **kwargs):
    return [7, 8, 9]


def test_the_engine_gets_the_prefix_behind_the_prompt_and_the_row_has_it_masked(monkeypatch):
    monkeypatch.setattr(SingleTurnAgentLoop, "run", generated)
    monkeypatch.setattr(SingleTurnAgentLoop, "ct_build_initial_tokens", built)
    loop = Engine()
    output = asyncio.run(loop.run({"top_p": 1.0}, prefix="30 31 32"))
    assert loop.asked == ([7, 8, 9, 30, 31, 32], {"top_p": 1.0, "max_tokens": 3})
    assert (output.prompt_ids, output.response_ids) == ([7, 8, 9], [30, 31, 32, 50, 51])
    assert output.response_mask == [0, 0, 0, 1, 1]
    assert output.response_logprobs == [0, 0, 0, -0.5, -0.25]
    plain = asyncio.run(loop.run({"top_p": 1.0}, prefix=""))
    assert loop.asked == ([7, 8, 9], {"top_p": 1.0}) and plain.response_mask == [1, 1]
