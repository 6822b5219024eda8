"""lab/studies/replay_that_pays.py: each arm's settings, as many runs for each, a run of each kind."""

import random
from dataclasses import replace

import pytest
import replay_that_pays as study
from ablate import parse
from equal_grids import overrides, trained_from
from many_answers import MANY_ANSWERS
from once_tasks import EVERY_TASK
from rare_tasks import load
from study_runs import Point, Run


@pytest.mark.parametrize("arm", study.ARMS)
@pytest.mark.parametrize("clip", ["yes", "no"])
def test_each_arm_says_what_it_is(arm, clip):
    run = Run("caesar", arm, Point("1e-4", "4", "2", clip), 0)
    experience, loss, loop, _ = parse(overrides(run, study.own_settings(run)))
    assert experience.experience == ("on-policy" not in arm) and experience.experience_start_sratio == 0
    is_group = arm in ("null", "headroom")
    assert loop.questions == (8 if is_group else 5 if arm == "rehearsal" else 4) and loop.reuse == 2
    assert loss.loss_remove_clip == (arm == "ExGRPO") ^ (
        clip == "no" and study.ARMS[arm].alternative == study.NO_CLIP
    ) ^ (arm == "ExGRPO" and clip == "no")
    if arm == "rehearsal":
        assert experience.experience_ratio * loop.questions == pytest.approx(1)
    assert loop.rollout_n == (12 if "1.5" in arm else 8)


def test_the_searches_of_all_arms_have_the_same_runs(monkeypatch):
    counts = {}

    class Found:
        def __init__(self):
            self.runs = set()

        def do(self, runs, executor, perform):
            self.runs |= set(runs)

        def mean(self, runs):
            return random.Random(str(runs)).random()

    for arm in study.ARMS:
        found = Found()
        study.search("caesar", arm, found, None)
        counts[arm] = len(found.runs)
    assert set(counts.values()) == {12 * 2 + 3 * 2 + 3 * 4}


@pytest.mark.parametrize("name", MANY_ANSWERS)
def test_a_question_has_many_right_answers(name):
    task, rng = MANY_ANSWERS[name], random.Random(0)
    question = task.split()[0][0]
    right = {reply for reply in (task.careless(question, rng) for _ in range(20_000)) if task.reward(question, reply)}
    assert len(right) >= 25 and all(len(reply) <= task.max_tokens for reply in right)
    share = sum(task.reward(q, task.careless(q, rng)) for q in task.split()[0] * 50) / (50 * 40)
    assert 0.02 < share < 0.2


@pytest.mark.parametrize("arm", ["rehearsal", "headroom", "prefix"])
def test_a_run_of_each_kind_replays(arm):
    run = Run("caesar", arm, Point("1e-3", "4", "1", "yes"), study.FIRST_SEARCH_SEED)
    seen = []
    policy, task = load(EVERY_TASK["caesar"])
    watched = replace(task, test=task.test[:4], reward=lambda q, r: seen.append(q) or task.reward(q, r))
    found = trained_from(policy, watched, run, study.own_settings(run), 6000)
    assert set(found) == {"seconds", "area"} and seen
