"""A user's reward is tried on known answers before Ray: its bugs end the command in one line."""

import pytest
from composed import configuration
from omegaconf import OmegaConf

from exgrpo.preflight.reward_rehearsal import rehearse

REWARDS = """
import asyncio

def right(data_source, solution_str, ground_truth, extra_info, worth=1.0, **_):
    return worth * (f"boxed{{{ground_truth}}}" in solution_str)

async def later(data_source, solution_str, ground_truth, extra_info):
    await asyncio.sleep(0)
    return {"score": float(ground_truth in solution_str), "acc": True}

def raises(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str.split("boxed{")[1] == ground_truth)

def nothing_at_all(data_source, solution_str, ground_truth, extra_info):
    if "boxed" in solution_str:
        return 1.0

def text(data_source, solution_str, ground_truth, extra_info):
    return "1.0"

def wrong_key(data_source, solution_str, ground_truth, extra_info):
    return {"reward": 1.0}

def not_a_number(data_source, solution_str, ground_truth, extra_info):
    return float("nan")

def always_zero(data_source, solution_str, ground_truth, extra_info):
    return 0.0
"""


@pytest.fixture
def rehearsed(files):
    """Rehearse the reward of a name with the first question of the fixture's data."""
    (files / "rewards.py").write_text(REWARDS)

    def run(name, told="trainer.rehearse_reward=True", **kwargs):
        config = configuration(
            files,
            f"reward.custom_reward_function.path={files}/rewards.py",
            f"reward.custom_reward_function.name={name}",
            told,
        )
        config.reward.custom_reward_function.reward_kwargs = OmegaConf.create(kwargs)
        rehearse(config)

    return run


def test_what_a_reward_gives_is_printed(rehearsed, files, capsys):
    rehearsed("right", worth=0.5)
    said = "0.5 for the gold in a box, 0 for the gold alone, 0 for nothing, 0 for nonsense"
    assert capsys.readouterr().out == f"exgrpo: reward: {said} (row 0 of {files}/data.parquet)\n"
    rehearsed("later")
    assert "reward: 1 for the gold in a box, 1 for the gold alone, 0 for" in capsys.readouterr().out


BUGS = {
    "raises": r"raises IndexError \(list index out of range\) at .*rewards.py:12 for the gold",
    "nothing_at_all": "nothing_at_all returns None for the gold alone in row 0",
    "text": "text returns '1.0' for the gold in a box in row 0 of data.train_files: must be a",
    "wrong_key": r"wrong_key returns {'reward': 1.0} for .*, or a dictionary with one as score",
    "not_a_number": "not_a_number returns nan for the gold in a box",
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_one_line_with_its_place(rehearsed, name):
    with pytest.raises(ValueError, match=BUGS[name]) as error:
        rehearsed(name)
    assert "\n" not in str(error.value)


def test_a_reward_that_tells_nothing_apart_is_refused_unless_told(rehearsed, capsys):
    with pytest.raises(ValueError, match="always_zero gives each of these answers the same rew"):
        rehearsed("always_zero")
    capsys.readouterr()
    rehearsed("always_zero", told="trainer.rehearse_reward=False")
    assert not capsys.readouterr().out


def test_exgrpos_own_reward_needs_no_rehearsal(files, capsys):
    rehearse(configuration(files))
    assert not capsys.readouterr().out


def test_golds_that_the_reward_does_not_take_are_counted_with_examples(files, rehearsed, caplog):
    import pandas as pd

    table = pd.read_parquet(files / "data.parquet")
    table["reward_model"] = [{"ground_truth": "x^{"}] + [{"ground_truth": "2"}] * (len(table) - 1)
    table.to_parquet(files / "data.parquet")
    rehearse(configuration(files))
    said = f"does not take 1 of {len(table)} golds as their own response, no rollout can be right"
    assert said in caplog.text and "row 0 x^{" in caplog.text
    caplog.clear()
    rehearsed("right")
    assert not caplog.text
