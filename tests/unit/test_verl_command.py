"""docs/verl-command.md: what method=replay_only adds to a command of verl's, and nothing else; what
the line at the start says; a YAML and a data class of one's own.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import datasets
import pytest
import watched
from composed import configuration, job
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset

from exgrpo.experience.config import ExperienceConfig, TrainerKeys
from exgrpo.experience.rl_dataset_with_experience import with_ids
from exgrpo.loss_settings import LossSettings
from exgrpo.on_verl.correct import OF_POLICY_LOSS
from exgrpo.preflight import other_defaults, values
from exgrpo.preflight.checks import check

PAGE = (Path(__file__).parents[2] / "docs" / "verl-command.md").read_text()
LOSS = "actor_rollout_ref.actor.policy_loss."
# all that replay needs beside its own keys
WIRING = {
    "data.gen_batch_size",
    "data.custom_cls.path",
    "data.custom_cls.name",
    f"{LOSS}_target_",
    f"{LOSS}entropy_agg",
    "ray_kwargs.ray_init.runtime_env.env_vars.VERL_ENGINE_VENDOR",
}
OURS = {f"trainer.{name}" for name in {*ExperienceConfig.__dataclass_fields__} - {"rollout_n"}}
OURS |= {f"trainer.{name}" for name in TrainerKeys.__dataclass_fields__}
OURS |= {f"{LOSS}{name}" for name in OF_POLICY_LOSS}
COMMAND = re.findall(r"^    ((?:data|actor_rollout_ref|algorithm|reward|trainer)\.\S+)", PAGE, re.M)
MINE = """
hydra:
  searchpath: ["${exgrpo.config_of_verl:}", pkg://exgrpo.config]
defaults:
  - exgrpo
  - method: replay_only
  - _self_
data:
  train_batch_size: 77
"""


def leaves(config):
    found = values.entries(OmegaConf.to_container(config, resolve=False))
    return {key: value for key, value in found if not isinstance(value, dict)}


def verls(*overrides):
    """verl's own configuration with a command's overrides."""
    (verl,) = find_spec("verl").submodule_search_locations
    with initialize_config_dir(f"{verl}/trainer/config", version_base=None):
        return compose("ppo_trainer", list(overrides))


def test_the_difference_to_verls_own_configuration_is_the_wiring():
    assert len(COMMAND) > 12
    before, now = leaves(verls(*COMMAND)), leaves(job("method=replay_only", *COMMAND))
    changed = {key for key in {*before, *now} if before.get(key, "no") != now.get(key, "no")}
    assert changed == WIRING | OURS
    assert {*LossSettings.__dataclass_fields__} - {*OF_POLICY_LOSS}, "clip stays verl's"


def test_the_line_at_the_start_names_each_setting_of_verls_that_is_ours(files):
    given = configuration(files, "trainer.logger=[console,file]")
    line = other_defaults.line(given)
    assert "algorithm.norm_adv_by_std_in_grpo=False" in line and "strategy=fsdp2" in line
    assert "reward.custom_reward_function.path=pkg://exgrpo.math_verify_reward" in line
    assert "trainer.logger" not in line and "attn_implementation" not in line, "given by the user"
    said = {
        part.partition("=")[0] for part in line.partition(": ")[2].split(": ", 1)[1].split(", ")
    }
    verl, plain = values.defaults(), leaves(job())
    different = {key for key in {*verl} & {*plain} if verl[key] != plain[key]}
    assert said >= different - {"trainer.logger"} and "no" not in said


def test_with_replay_only_the_line_names_the_wiring_alone(files, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE)
    for more in (["method=replay_only"], ["--config-dir", str(tmp_path), "--config-name", "mine"]):
        printed = run(*more, "--cfg", "job")
        assert "loss_agg_mode: token-mean" in printed and "norm_adv_by_std_in_grpo: true" in printed
        assert ("train_batch_size: 77" in printed) == (len(more) > 1)


def run(*arguments):
    done = watched.run([sys.executable, "-m", "exgrpo.main_mix_ppo", *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_data_class_of_ones_own_gets_ids_and_keeps_its_rows():
    class Mine(RLHFDataset):
        def __getitem__(self, item):
            return {"prompt": self.dataframe["prompt"][item], "mine": item}

        def __len__(self):
            return 1

    mine, prompt = Mine.__new__(Mine), [{"role": "user", "content": "2 + 3"}]
    mine.dataframe, mine.prompt_key = datasets.Dataset.from_dict({"prompt": [prompt]}), "prompt"
    (name,) = with_ids(mine).question_ids()
    assert mine[0] == {"prompt": prompt, "mine": 0, "question_id": name} and isinstance(mine, Mine)
    assert with_ids(mine) is mine and type(mine).__mro__[1] is Mine
    with pytest.raises(ValueError, match=r"custom_cls\.name=list: must be a class that extends"):
        with_ids([])


def test_without_flash_attn_the_key_that_verl_does_not_list_is_named(files, monkeypatch):
    monkeypatch.setattr("exgrpo.config.kernels.installed", lambda name: name == "torch")
    given = configuration(files)
    with_none = OmegaConf.masked_copy(given, list(given))
    with_none.actor_rollout_ref.model.override_config = {}
    with pytest.raises(
        ValueError, match=r"^\+actor_rollout.*attn_implementation: not given, which"
    ):
        check(with_none)
