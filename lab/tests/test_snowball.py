"""lab/studies/snowball.py: what counts as lucky, and the shares of a run."""

import math

import pytest
import snowball
from study_runs import Run


def test_shares_are_of_successes_by_thirds_of_the_steps():
    steps = [[4, 2, 2, 1], [0, 0, 0, 0], [8, 0, 4, 4]]
    found = snowball.measures({"steps": steps, "end": 0.5})
    assert found == {
        "replayed, first third": 0.5,
        "replayed, last third": 1.0,
        "fresh, first third": 0.5,
        "fresh, last third": 0.0,
        "accuracy": 0.5,
    }
    silent = snowball.measures({"steps": [[1, 0, 0, 0]] * 3, "end": 0.5})
    assert math.isnan(silent["replayed, first third"]) and silent["fresh, first third"] == 0


@pytest.mark.parametrize("method", ["lowest entropy", "highest entropy"])
def test_a_run_counts_what_it_replays(monkeypatch, method):
    monkeypatch.setattr(snowball, "STEPS", 4)
    found = snowball.perform(Run("sum", method, snowball.POINT, 0))
    assert len(found["steps"]) == 4
    assert all(lucky <= all_ and past_lucky <= past for all_, lucky, past, past_lucky in found["steps"])
    assert sum(step[1] for step in found["steps"]) > 0 < sum(step[2] for step in found["steps"])
