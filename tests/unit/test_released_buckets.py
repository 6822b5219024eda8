"""The pool beside the released bucket manager, run on the same groups: 85 steps of three simulated
runs.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from exgrpo import ExperienceConfig, ExperiencePool, RolloutGroup, Trajectory

CASES = json.loads((Path(__file__).parents[1] / "golden" / "released_buckets.json").read_text())[
    "cases"
]


def differing_steps(case):
    """The steps after which buckets, drawable questions or retired ones are not the release's."""
    config = ExperienceConfig(
        rollout_n=case["rollouts"],
        experience_lbound=case["lbound"],
        experience_rbound=case["rbound"],
        experience_start_sratio=0,
    )
    pool = ExperiencePool(config)
    differing = []
    for number, step in enumerate(case["steps"]):
        groups = [
            RolloutGroup(
                name, size, tuple(Trajectory([t], [-1.0], number) for t in range(solved)), replayed
            )
            for name, size, solved, replayed in step["groups"]
        ]
        for group, bucket in zip(groups, pool.buckets_of(groups), strict=True):
            pool.observe(group, bucket)
        drawable = pool.choose(1000, np.random.default_rng(0))
        same = {name: pool.bucket(name) for name in pool} == step["buckets"]
        if (
            not same
            or sorted(drawable) != step["drawable"]
            or sorted(pool.retired) != step["retired"]
        ):
            differing.append(number)
    return differing


@pytest.mark.parametrize("case", CASES)
def test_the_released_rule_is_the_releases_step_by_step(case):
    assert len(case["steps"]) in (25, 30) and differing_steps(case) == []
