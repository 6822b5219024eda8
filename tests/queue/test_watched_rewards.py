"""Rollouts whose reward raised are counted and left out; a step without any other ends."""

import asyncio

import numpy as np
import pytest
import transfer_queue as tq
from composed import job
from queue_trainer import BASE_MODEL
from transformers import AutoTokenizer
from verl.protocol import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from exgrpo.on_verl import watched_rewards
from exgrpo.on_verl.queue import Batch
from exgrpo.on_verl.watched_rewards import Rewards
from exgrpo.preflight.checks import resolve

REWARDS = """
def raises(data_source, solution_str, ground_truth, extra_info, **settings):
    return float(solution_str.split("boxed{")[1] == ground_truth)

def nothing_at_all(data_source, solution_str, ground_truth, extra_info, **settings):
    if "boxed" in solution_str:
        return 1.0

def text(data_source, solution_str, ground_truth, extra_info, **settings):
    return "1.0"

def wrong_key(data_source, solution_str, ground_truth, extra_info, **settings):
    return {"reward": 1.0}

def not_a_number(data_source, solution_str, ground_truth, extra_info, **settings):
    return float("nan")

def half(data_source, solution_str, ground_truth, extra_info, **settings):
    return {"score": 0.5, "rule": "half"}
"""
SAID = {
    "raises": "raised IndexError (list index out of range) at",
    "nothing_at_all": "was None, which is no finite number",
    "text": "was '1.0', which is no finite number",
    "wrong_key": "raised KeyError ('score') at",
    "not_a_number": "was nan, which is no finite number",
}


@pytest.fixture
def judged(tmp_path):
    """What verl's reward process makes of a rollout, by a reward of the user's."""
    (tmp_path / "mine.py").write_text(REWARDS)
    tokenizer = AutoTokenizer.from_pretrained(BASE_MODEL)

    def run(name):
        key = "reward.custom_reward_function"
        config = job(f"{key}.path={tmp_path}/mine.py", f"{key}.name={name}")
        resolve(config)
        response = tokenizer("12", return_tensors="pt")["input_ids"]
        tensors = {"responses": response, "attention_mask": response.new_ones(response.shape)}
        others = {"data_source": "x", "reward_model": {"ground_truth": "2"}, "extra_info": {}}
        row = DataProto.from_dict(
            tensors, non_tensors={name: np.array([value]) for name, value in others.items()}
        )
        return asyncio.run(_manager(config, tokenizer, row))

    return run


async def _manager(config, tokenizer, row):
    return await load_reward_manager(config, tokenizer).run_single(row)


@pytest.mark.parametrize("name", SAID)
def test_a_reward_that_is_none_is_zero_with_its_reason(judged, name):
    result = judged(name)
    assert result["reward_score"] == 0
    assert result["reward_extra_info"][watched_rewards.WRONG].startswith(SAID[name])


def test_a_reward_that_is_one_is_left_alone(judged):
    said = {"score": 0.5, "rule": "half"}
    assert judged("half") == {"reward_score": 0.5, "reward_extra_info": said}


def written(reasons):
    """Rows in the queue, one for each reason, None for a reward that is right."""
    keys = [f"u_{session}_0" for session in range(len(reasons))]
    infos = [{} if why is None else {watched_rewards.WRONG: why} for why in reasons]
    rows = [{"extra_fields": {"reward_extra_info": info}} for info in infos]
    tags = [{"seq_len": 1} for _ in keys]
    fields = list_of_dict_to_tensordict(rows)
    tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
    return Batch(partition_id="train", keys=keys, tags=tags)


def test_rollouts_without_a_reward_are_counted_said_once_and_left_out(training_queue, caplog):
    rewards, metrics = Rewards(), {}
    for _ in range(2):
        batch = rewards.judged_alone(written([None, "raised X", "raised Y", None]), metrics)
        assert batch.keys == ["u_0_0", "u_3_0"]
        assert metrics == {"training/reward_errors": 2}
    (said,) = [line for line in caplog.messages if line.startswith("exgrpo")]
    assert "2 of 4 rollouts have no reward" in said and said.endswith("the first raised X")


def test_a_step_without_any_other_rollout_ends_with_that_line(training_queue):
    said = "2 of 2 rollouts have no reward.*nothing is left to train on; the first raised X"
    with pytest.raises(ValueError, match=said):
        Rewards().judged_alone(written(["raised X", "raised Y"]), {})


def test_three_steps_without_an_advantage_are_said_once(caplog):
    rewards = Rewards()
    flat = {"critic/advantages/min": 0.0, "critic/advantages/max": 0.0, "critic/score/mean": 0.0}
    some = flat | {"critic/advantages/max": 0.1}
    for step, metrics in enumerate([flat, flat, some, flat, flat, flat, flat], 1):
        rewards.look(step, metrics)
    (record,) = caplog.records
    assert record.getMessage().startswith("exgrpo: step 6: no rollout of the last 3 steps has an")
