"""lab/studies/ablate.py: tasks with right answers, runs that are not done twice, estimates with closed forms."""

import json
import subprocess
import sys
from pathlib import Path

import ablate
import comparison
import numpy as np
import pytest
import torch
import variants
from minimal_loop import Rows
from rules import token_count
from skills import SKILLS
from studies import COMMON, STUDIES
from study_folders import RULES
from variants import objective_of

from exgrpo import ExperienceConfig, ExperiencePool, RolloutGroup, Trajectory

STUDIES_FOLDER = Path(__file__).parents[1] / "studies"


def study(monkeypatch, capsys, *arguments):
    """What the command prints, in this process, which has imported what it needs."""
    monkeypatch.setattr(sys, "argv", ["ablate.py", *map(str, arguments)])
    ablate.main()
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "question", "reply"),
    [
        ("sum", "3+5+9", "3+5=8;8+9=17;\\boxed{17}"),
        ("mod", "123", "01=1;12=5;53=4;\\boxed{4}"),
    ],
)
def test_a_careful_answer_is_right(name, question, reply):
    skill = SKILLS[name]
    assert skill.careful(question) == reply and skill.reward(question, reply) == 1
    assert skill.reward(question, "\\boxed{0}") == 0


@pytest.mark.parametrize("name", SKILLS)
def test_splits_are_disjoint_and_always_the_same(name):
    train, test = SKILLS[name].split()
    assert len({*train, *test}) == len(train) + len(test) and (train, test) == SKILLS[name].split()
    assert all(SKILLS[name].reward(question, SKILLS[name].careful(question)) for question in train)


def test_the_settings_of_a_study_differ():
    for study in STUDIES.values():
        parsed = [ablate.parse((*COMMON, *settings)) for settings in study.values()]
        kinds = {(*map(str, settings), str(objective).split(" at ")[0]) for *settings, objective in parsed}
        assert len(kinds) == len(study) > 1


def test_estimates_are_students():
    mean, low, high = comparison.estimate([1.0, 2.0, 3.0])
    half = 4.303 * 1.0 / np.sqrt(3)
    assert (mean, low, high) == pytest.approx((2, 2 - half, 2 + half))
    assert np.isnan(comparison.estimate([1.0]).low)


def curve(*tests, tokens=100):
    return [{"step": 10 * i, "generated": tokens * i, "test": value} for i, value in enumerate(tests)]


def test_measures_of_a_straight_line():
    found = comparison.measures(curve(0.0, 0.25, 0.5, 0.75), tokens=150)
    assert found == pytest.approx({"end": 0.75, "mean": 0.375, "equal": 0.375})


def test_differences_are_paired_by_seed(tmp_path):
    base = [curve(0.1, 0.2, 0.3), curve(0.5, 0.6, 0.7), curve(0.3, 0.4, 0.5)]
    better = [curve(0.1, 0.2, 0.31), curve(0.5, 0.6, 0.71), curve(0.3, 0.4, 0.51)]
    text = comparison.compare("s", "sum", {"a": base, "b": better}, tmp_path)
    assert "| b | .510 (.013 to 1.007) | **.010 (.010 to .010)** |" in text
    assert (tmp_path / "s-sum.md").read_text() == text and (tmp_path / "s-sum.png").stat().st_size > 5000


def test_a_pool_by_question_files_the_longest_as_the_most_difficult():
    pool = ExperiencePool(ExperienceConfig(8, exp_difficulty=f"{RULES}:question_length"))
    for question in ("111", "1+1+1+1+1+1+1+1"):
        pool.observe(RolloutGroup(question, 8, (Trajectory([1], [-1.0], 1),)))
    assert pool.metrics()["bucket_1"] == 1 and pool.metrics()["bucket_6"] == 1


def test_a_pool_by_tokens_files_the_longest_answers_as_the_most_difficult():
    groups = [
        RolloutGroup("q", 8, [Trajectory(range(n), [-1.0] * n, 1) for n in lengths])
        for lengths in ([48, 48], [8], [20, 30], [])
    ]
    assert token_count(groups, 8) == [1, 6, 4, 7]


def test_a_run_is_not_done_twice(tmp_path, monkeypatch, capsys):
    arguments = ("--grid", "trainer.experience_ratio=0.5,0.25", "--steps", "2", "--seeds", "1", "--output", tmp_path)
    first = study(monkeypatch, capsys, *arguments)
    assert "0 runs are there, 2 to do" in first and "trainer.experience_ratio=0.25 | " in first
    files = {path: path.read_bytes() for path in tmp_path.glob("sum/*.json")}
    assert len(files) == 2 and len(json.loads(files.popitem()[1])["curve"]) == 3
    next(iter(files)).unlink()
    again = study(monkeypatch, capsys, *arguments)
    assert "1 runs are there, 1 to do" in again
    assert again.partition("###")[2] == first.partition("###")[2]  # a run repeats to the bit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("9",), "9: must be one of 1-replay"),
        (("1-replay", "--task", "x"), "--task x: must be one of sum, mod"),
        (("1-replay", "--seeds", "0"), "--seeds 0: must be at least 1"),
        (("--grid", "trainer.experience_ratio"), "must be key=value,value"),
        (("--grid", "trainer.experience_ratio=0.5,2"), "between 0 and 1"),
        (("--grid", "study.difficulty=colour"), "study.difficulty=colour: must be"),
    ],
)
def test_a_wrong_study_is_one_line(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ablate.py", *arguments])
    with pytest.raises(SystemExit) as refused:
        ablate.main()
    assert refused.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]


def test_a_command_without_a_study_says_so_and_no_more():
    done = subprocess.run([sys.executable, STUDIES_FOLDER / "ablate.py"], capture_output=True, text=True)
    assert done.returncode == 2 and "no study" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_only_groups_of_a_level_train_and_the_others_count_in_the_divisor(monkeypatch):
    def mean_over_rows(policy, rows, replay, loss):
        return torch.tensor(12.0), [question for question, _ in rows.fresh]

    monkeypatch.setattr(variants, "objective", mean_over_rows)
    rows = Rows(
        [(q, Trajectory([1], [-1.0], 1, 0.1, reward=r)) for q, r in zip("aabbcc", (0, 0, 1, 0, 1, 1), strict=True)], []
    )
    for level, kept, share in (("hard", [], 0), ("medium", ["b", "b"], 1 / 3), ("easy", ["c", "c"], 1 / 3)):
        value, trained = objective_of({"objective": f"only_{level}"})(None, rows, None, None)
        assert value == 12 * share and (trained == kept or not kept)


def test_no_such_part():
    with pytest.raises(ValueError, match=r"study\.retirement=True: must be study\.objective="):
        objective_of({"retirement": "True"})
    with pytest.raises(ValueError, match=r"study\.objective=none: must be study\.objective=as_published, "):
        objective_of({"objective": "none"})
