"""exgrpo.on_verl.validation_metrics: verl's numbers to the bit, and verl's validation asks for them there."""

import functools

import numpy as np
import pytest
from verl.trainer.ppo import metric_utils

from exgrpo.on_verl import validation_metrics

REAL = metric_utils.bootstrap_metric
VOTES = functools.partial(metric_utils.calc_maj_val, vote_key="pred", val_key="val")


@pytest.mark.parametrize(("answers", "size"), [(2, 2), (3, 2), (8, 4), (32, 32), (5, 1)])
def test_the_numbers_are_verls(answers, size):
    rng = np.random.default_rng(answers)
    rewards = rng.random(answers).tolist()
    votes = [{"val": value, "pred": str(rng.integers(3))} for value in rewards]
    for data, functions in ((rewards, [np.max, np.min]), (votes, [VOTES])):
        state = []
        for bootstrap in (REAL, validation_metrics.bootstrap_metric):
            state.append((bootstrap(data, size, functions), np.random.random()))  # and numpy's generator after it
        assert state[0] == state[1]
        assert REAL(data, size, functions, 50, 7) == validation_metrics.bootstrap_metric(data, size, functions, 50, 7)


def test_a_subset_is_judged_once():
    judged = []

    def best(subset):
        judged.append(tuple(subset))
        return max(subset)

    validation_metrics.bootstrap_metric([0.0, 1.0], 2, [best])
    assert sorted(judged) == [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]


def test_verls_validation_uses_it(monkeypatch):
    monkeypatch.setattr(metric_utils, "bootstrap_metric", REAL)
    sources, rewards = ["sums"] * 4, {"reward": [0.0, 1.0, 1.0, 1.0], "pred": ["3", "4", "4", "5"]}
    before = metric_utils.process_validation_metrics(sources, ["a", "a", "b", "b"], rewards)
    calls = []
    monkeypatch.setattr(
        validation_metrics,
        "bootstrap_metric",
        lambda **kwargs: calls.append(kwargs) or REAL(**kwargs),
    )
    validation_metrics.install()
    after = metric_utils.process_validation_metrics(sources, ["a", "a", "b", "b"], rewards)
    assert after == before and "best@2/mean" in after["sums"]["reward"]
    assert len(calls) == 4  # two questions: best and worst, majority
