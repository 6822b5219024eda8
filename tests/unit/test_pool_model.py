"""ExperiencePool against a plain model: one list of records in the order of recording, scanned for
everything.
"""

import math
import tempfile
from pathlib import Path

import invariants
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool, Outcome
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.saved.pool_folder import PoolFolder

QUESTIONS = [f"q{i}" for i in range(6)]
K = 4
taken = 0  # steps of all runs of the machine


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        lbound=st.integers(0, 1),
        rbound=st.integers(2, 4),
        per_question=st.integers(1, 4),
        overall=st.integers(1, 12),
        memory=st.sampled_from([10**9, 2500, 700]),
        age=st.sampled_from([None, 1, 5]),
        method=st.sampled_from(["normal", "linear", False]),
        sample_range=st.sampled_from(["all", "first_half", "last_half"]),
    )
    def start(self, lbound, rbound, per_question, overall, memory, age, method, sample_range):
        self.config = ExperienceConfig(
            rollout_n=K,
            experience_lbound=lbound,
            experience_rbound=rbound,
            experience_max_per_question=per_question,
            experience_max_trajectories=overall,
            experience_max_bytes=memory,
            experience_max_age=age,
            exp_bucket_manager=method,
            exp_sample_range=sample_range,
        )
        self.pool, self.folder = ExperiencePool(self.config), PoolFolder()
        self.records = []  # (question, token, step, entropy), the latest recording last
        self.buckets = {}  # question -> bucket, in the order of entry
        self.retired = set()
        self.step = 0

    def of(self, question):
        return [record for record in self.records if record[0] == question]

    def model_observe(self, question, size, successes, replayed):
        if question in self.retired:
            return Outcome.SKIPPED
        if (
            len(successes) == size and size >= K - 1
        ):  # of K - 1 fresh rollouts one is replayed: a whole group
            self.retired.add(question)
            self.buckets.pop(question, None)
            self.records = [record for record in self.records if record[0] != question]
            return Outcome.RETIRED
        bucket = round((len(successes) + replayed) * K / (size + replayed))
        wanted = self.config.experience_lbound < bucket <= self.config.experience_rbound
        if (wanted and successes) or (question in self.buckets and wanted):
            self.buckets[question] = bucket
        if not (wanted and successes):
            return Outcome.SKIPPED
        for token, entropy in successes:
            self.records = [record for record in self.records if record[:2] != (question, token)]
            self.records.append((question, token, self.step, entropy))
        while len(self.of(question)) > self.config.experience_max_per_question:
            worst = max(
                self.of(question),
                key=lambda record: math.inf if math.isnan(record[3]) else record[3],
            )
            self.records.remove(worst)
        self.records = self.records[-self.config.experience_max_trajectories :]
        while not self.within_bounds():
            self.records.pop(0)
        self.forget_emptied()
        return Outcome.STORED

    def within_bounds(self):
        bodies = sum(8 * (1 + record[1] % 3) for record in self.records)
        return bodies + 200 * len(self.records) <= self.config.experience_max_bytes

    def forget_emptied(self):
        self.buckets = {q: bucket for q, bucket in self.buckets.items() if self.of(q)}

    @rule(
        question=st.sampled_from(QUESTIONS),
        size=st.sampled_from([K, K, K - 1, 2]),
        successes=st.lists(
            st.tuples(st.integers(0, 5), st.sampled_from([0.1, 0.2, math.nan])), max_size=K
        ),
    )
    def observe(self, question, size, successes):
        self.step += 1
        successes = successes[:size]
        trajectories = tuple(self.trajectory(token, value) for token, value in successes)
        group = RolloutGroup(question, size, trajectories, replayed=int(size == K - 1))
        assert self.pool.observe(group) is self.model_observe(
            question, size, successes, group.replayed
        )

    def trajectory(self, token, entropy):
        length = 1 + token % 3
        return Trajectory([token] * length, [-float(self.step)] * length, self.step, entropy)

    @rule()
    def end_step(self):
        metrics = self.pool.end_step(self.step, {"fresh_score": 0.5})
        if self.config.experience_max_age is not None:
            self.records = [
                r for r in self.records if self.step + 1 - r[2] <= self.config.experience_max_age
            ]
            self.forget_emptied()
        ages = sorted(self.step - record[2] for record in self.records) or [0]
        assert metrics["age_median"] == ages[math.ceil(0.5 * len(ages)) - 1]
        assert metrics["age_p95"] == ages[math.ceil(0.95 * len(ages)) - 1]

    @rule(
        count=st.integers(0, 7), seed=st.integers(0, 3), exclude=st.sets(st.sampled_from(QUESTIONS))
    )
    def choose(self, count, seed, exclude):
        eligible = list(self.buckets)
        half = len(eligible) // 2
        allowed = {"all": eligible, "first_half": eligible[:half], "last_half": eligible[half:]}
        allowed = set(allowed[self.config.exp_sample_range]) - exclude
        drawn = self.pool.choose(count, np.random.default_rng(seed), exclude)
        assert len(drawn) == len(set(drawn)) == min(count, len(allowed))
        assert set(drawn) <= allowed

    @rule(seed=st.integers(0, 3), count=st.integers(1, 5))
    def reload(self, seed, count):
        with tempfile.TemporaryDirectory() as parent:
            self.folder.save(self.pool, Path(parent) / "pool", self.step, {"data": "x"})
            loaded = self.folder.load(Path(parent) / "pool", self.config, self.step, {"data": "x"})
        draws = [pool.choose(count, np.random.default_rng(seed)) for pool in (self.pool, loaded)]
        assert draws[0] == draws[1]
        assert loaded.metrics() == self.pool.metrics()
        self.pool = loaded  # whatever comes next must not tell them apart

    @invariant()
    def agree(self):
        if not hasattr(self, "pool"):
            return
        global taken
        taken += 1
        invariants.check(self.pool)
        metrics = self.pool.metrics()
        assert metrics["pool_trajectories"] == len(self.records)
        assert metrics["pool_tokens"] == sum(1 + record[1] % 3 for record in self.records)
        assert metrics["retired_questions"] == len(self.retired)
        for bucket in range(K + 1):
            assert metrics[f"bucket_{bucket}"] == list(self.buckets.values()).count(bucket)
        for question in self.buckets:
            stored = [
                (question, int(t.tokens[0]), t.step, t.entropy, float(t.log_probs[0]))
                for t in self.pool.candidates(question)
            ]
            assert repr(stored) == repr(
                [(*record, -float(record[2])) for record in self.of(question)]
            )  # NaN == NaN


TestPoolAgainstModel = PoolMachine.TestCase
TestPoolAgainstModel.settings = settings(
    max_examples=350, stateful_step_count=40, deadline=None, derandomize=True
)


def test_that_were_ten_thousand_steps():
    assert taken >= 10_000, taken
