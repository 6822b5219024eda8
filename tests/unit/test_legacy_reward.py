"""Keys of the reward that verl's V1 trainer reads no more are refused with today's name."""

import pytest
from composed import job

from exgrpo.preflight import legacy_reward

OLD = {
    "custom_reward_function.path=mine.py": "reward.custom_reward_function.path",
    "+custom_reward_function.reward_kwargs.worth=2": (
        "reward.custom_reward_function.reward_kwargs.worth"
    ),
    "reward_model.reward_manager=dapo": "reward.reward_manager.name",
    "+reward_model.reward_kwargs.max_resp_len=5": "reward.reward_kwargs.max_resp_len",
    "reward_model.num_workers=2": "reward.num_workers",
    "reward_model.enable=True": "reward.reward_model.enable",
    "reward_model.model.path=judge": "reward.reward_model.model_path",
    "reward_model.rollout.name=vllm": "reward.reward_model.rollout.name",
    "sandbox_fusion.url=http://one": "reward.sandbox_fusion.url",
}


@pytest.mark.parametrize("given", OLD)
def test_an_old_key_is_refused_with_its_name_today(given):
    with pytest.raises(ValueError) as error:
        legacy_reward.verify(job(given))
    said = given.removeprefix("+")
    assert str(error.value) == f"{said}: verl reads it no more; write {OLD[given]}"


def test_one_that_has_no_name_today_and_all_at_once():
    with pytest.raises(ValueError) as error:
        legacy_reward.verify(job("reward_model.model.external_lib=x", "sandbox_fusion.url=u"))
    first, second = str(error.value).splitlines()
    assert first.endswith("no key has taken its place") and second.endswith("sandbox_fusion.url")


def test_none_is_set_by_default():
    legacy_reward.verify(job())
