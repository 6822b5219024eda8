"""On which buckets a step's draws fell, by hand and in a replay."""

import pytest

from exgrpo import ExperienceConfig, Trajectory
from exgrpo.experience.experience_bucket_manager import DrawCount
from exgrpo.experience.experience_trainer_ops import ExperienceReplay


@pytest.mark.parametrize(
    ("rollout_n", "hard", "medium", "easy"),
    [(8, [0, 1, 2], [3, 4, 5], [6, 7, 8]), (4, [0, 1], [2], [3, 4])],
)
def test_levels_are_quarters_of_the_success_rate(rollout_n, hard, medium, easy):
    count = DrawCount(rollout_n)
    for level, members in (("hard", hard), ("medium", medium), ("easy", easy)):
        count.add(members)
        metrics = count.metrics()
        assert (
            metrics[f"drawn_{level}"]
            == len(members)
            == sum(metrics[f"drawn_bucket_{k}"] for k in members)
        )
        assert sum(metrics.values()) == 2 * len(members)
    assert set(count.metrics().values()) == {0.0} and count.metrics().keys() == metrics.keys()


def test_a_step_reports_its_own_draws():
    questions = [f"q{number}" for number in range(9)]
    replay = ExperienceReplay(ExperienceConfig(rollout_n=8, experience_start_sratio=0), questions)
    for name, bucket in (("q0", 1), ("q1", 4), ("q2", 4), ("q3", 7)):
        replay.pool.file(name, bucket, Trajectory([1], [-1.0], 0))
    rest = iter(questions[4:])
    drawn = replay.draw(1, 8, lambda: (next(rest), False))
    assert sorted(drawn.replayed) == ["q0", "q1", "q2", "q3"]
    metrics = replay.observe(1, [], {})
    assert [metrics[f"drawn_bucket_{bucket}"] for bucket in range(9)] == [0, 1, 0, 0, 2, 0, 0, 1, 0]
    assert (metrics["drawn_hard"], metrics["drawn_medium"], metrics["drawn_easy"]) == (1, 2, 1)
    assert replay.observe(2, [], {})["drawn_medium"] == 0
