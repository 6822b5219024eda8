"""TrajectoryBuffer against a plain model: a list of records in the order of recording and a list of
outcomes each.
"""

import math
import tempfile

import invariants
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exgrpo.buffer import DifficultyBucketer, TrajectoryBuffer

QUESTIONS = [f"q{i}" for i in range(5)]
PERCENTILES = (25, 50, 75)
ranges = st.sampled_from([None, (0.3, 0.7), (0.0, 0.5), (1.0, 1.0)])
taken = 0  # steps of all runs of the machine


class BufferMachine(RuleBasedStateMachine):
    @initialize(
        size=st.integers(1, 10),
        each=st.integers(1, 3),
        age=st.sampled_from([None, 1, 4]),
        tiers=st.integers(1, 6),
        window=st.integers(1, 5),
    )
    def start(self, size, each, age, tiers, window):
        self.size, self.each, self.age, self.tiers, self.window = size, each, age, tiers, window
        bucketer = DifficultyBucketer(window_size=window)
        self.buffer = TrajectoryBuffer(
            size, tiers, PERCENTILES, bucketer=bucketer, max_per_question=each, max_age=age
        )
        # (question, text, reward, entropy, step, has tokens), the latest recording last
        self.records = []
        self.outcomes = {}  # question -> outcomes
        self.now = self.added = 0

    def of(self, question):
        return [record for record in self.records if record[0] == question]

    def level(self, question):
        return np.mean(self.outcomes[question][-self.window :])

    @rule(
        question=st.sampled_from(QUESTIONS),
        correct=st.booleans(),
        text=st.sampled_from("abcde"),
        entropy=st.sampled_from([0.1, 0.2, 0.3, None]),
        with_tokens=st.booleans(),
    )
    def add(self, question, correct, text, entropy, with_tokens):
        self.added += 1
        reward = 1 / self.added
        row = {
            "prompt": question,
            "rollout": text,
            "reward": reward,
            "is_correct": correct,
            "entropy": entropy,
        }
        if with_tokens:
            row |= {"tokens": [ord(text)], "log_probs": [-float(self.added)]}
        kept = self.buffer.add(row)
        self.outcomes.setdefault(question, []).append(correct)
        if correct:
            same = (question, text, with_tokens)
            self.records = [record for record in self.records if (*record[:2], record[5]) != same]
            new = (
                question,
                text,
                reward,
                math.nan if entropy is None else entropy,
                self.now,
                with_tokens,
            )
            self.records.append(new)
            while len(self.of(question)) > self.each:
                worst = max(
                    self.of(question),
                    key=lambda record: math.inf if math.isnan(record[3]) else record[3],
                )
                self.records.remove(worst)
            self.records = self.records[-self.size :]
        assert kept == (correct and any(record is new for record in self.records))

    @rule(steps=st.integers(1, 3))
    def update_the_policy(self, steps):
        self.now += steps
        self.buffer.policy_snapshot = self.now
        if self.age is not None:
            self.records = [record for record in self.records if self.now - record[4] <= self.age]

    @rule()
    def clear(self):
        self.buffer.clear()
        self.records, self.outcomes = [], {}

    @rule()
    def reload(self):
        with tempfile.TemporaryDirectory() as folder:
            self.buffer.save(folder + "/buffer")
            loaded = TrajectoryBuffer.load(folder + "/buffer")
        assert loaded.rng.bit_generator.state == self.buffer.rng.bit_generator.state
        self.buffer = loaded  # whatever comes next must not tell them apart

    @rule(
        size=st.integers(1, 6),
        levels=ranges,
        percentile=st.sampled_from([None, *PERCENTILES]),
        strategy=st.sampled_from(
            ["medium_difficulty_low_entropy", "uniform_high_entropy", "uniform_random"]
        ),
    )
    def sample(self, size, levels, percentile, strategy):
        low, high = levels or (0, 1)
        known = [record[3] for record in self.records if not math.isnan(record[3])]
        limit = np.percentile(known, percentile) if known and percentile is not None else math.inf
        left = [
            record
            for record in self.records
            if low <= self.level(record[0]) <= high and record[3] <= limit
        ]
        if percentile is None and strategy == "uniform_random":
            left = [record for record in self.records if low <= self.level(record[0]) <= high]
        questions = {record[0] for record in left}
        assert self.buffer.eligible(strategy, levels, percentile) == len(questions)
        if not questions:
            return
        batch = self.buffer.sample(strategy, size, levels, percentile)
        assert len(set(batch.prompts)) == len(batch) == min(size, len(questions))
        best = {"medium_difficulty_low_entropy": min, "uniform_high_entropy": max}.get(strategy)
        for row in range(len(batch)):
            found = next(
                r
                for r in left
                if r[:3] == (batch.prompts[row], batch.texts[row], batch.rewards[row])
            )
            assert (
                batch.levels[row] == self.level(found[0]) and batch.ages[row] == self.now - found[4]
            )
            assert (batch.tokens[row] is None) == (batch.log_probs[row] is None) == (not found[5])
            if found[5]:
                assert batch.tokens[row].tolist() == [ord(found[1])]
                assert batch.log_probs[row] == np.float32(-1 / found[2])
            if best:
                assert (
                    found[3] == best(r[3] for r in left if r[0] == found[0]) == batch.entropies[row]
                )

    @invariant()
    def agree(self):
        if not hasattr(self, "buffer"):
            return
        global taken
        taken += 1
        pool, bucketer = self.buffer.pool, self.buffer.bucketer
        invariants.check(pool)
        assert len(self.buffer) == len(self.records)
        assert bucketer.windows() == {
            q: [float(x) for x in o[-self.window :]] for q, o in self.outcomes.items()
        }
        for question in {record[0] for record in self.records}:
            tier = 1 + min(int(self.level(question) * self.tiers), self.tiers - 1)
            assert pool.bucket(question) == tier


TestBufferAgainstModel = BufferMachine.TestCase
TestBufferAgainstModel.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True
)


def test_that_were_one_thousand_steps():
    assert taken >= 1_000, taken
