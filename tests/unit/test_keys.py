"""A key stands in one place: the yaml file and the page are written from it, and a changed one is
noticed.
"""

import subprocess
import sys

import pytest
import write_keys
from omegaconf import OmegaConf

from exgrpo.experience.config import ExperienceConfig, TrainerKeys


def test_yaml_and_page_are_what_the_code_says():
    done = subprocess.run(
        [sys.executable, write_keys.__file__, "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_yaml_files_defaults_make_the_default_settings():
    trainer = OmegaConf.load(write_keys.YAML).trainer
    assert ExperienceConfig.from_mapping(trainer, 8) == ExperienceConfig(rollout_n=8)
    assert TrainerKeys.from_mapping(trainer) == TrainerKeys()


@pytest.mark.parametrize(
    "old", ["experience_ratio: 0.5", "seed of all draws", "f(w) of replayed tokens"]
)
def test_a_difference_is_named(tmp_path, monkeypatch, old):
    changed = tmp_path / "exgrpo_trainer.yaml"
    text = write_keys.YAML.read_text()
    assert old in text
    changed.write_text(text.replace(old, "something else: 1"))
    monkeypatch.setattr(write_keys, "YAML", changed)
    monkeypatch.setattr(write_keys, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["write_keys.py", "--check"])
    with pytest.raises(SystemExit, match=r"exgrpo_trainer\.yaml differs from the code"):
        write_keys.main()
    monkeypatch.setattr(sys, "argv", ["write_keys.py"])
    write_keys.main()
    assert changed.read_text() == text


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("max_optim_to_keep", 0, "an integer of at least 1, or null"),
        ("rollout_seeded", "maybe", "true or false"),
        ("rollout_poll_interval", 0, "a number of seconds above 0, at most 60"),
        ("rollout_patience_s", 0, "a finite number above 0, or null"),
    ],
)
def test_a_wrong_value_of_the_trainers_keys_is_named(key, value, allowed):
    with pytest.raises(ValueError, match=f"^trainer.{key}={value}: must be {allowed}$"):
        TrainerKeys.from_mapping({key: value})
