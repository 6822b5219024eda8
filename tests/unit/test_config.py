"""ExperienceConfig: defaults, types, and one-line errors."""

import dataclasses

import pytest

from exgrpo.experience.config import ExperienceConfig

SCRIPT = {
    "experience": "True",
    "exp_metric": "ent",
    "exp_select_mode": "argmin",
    "exp_sample_range": "all",
    "exp_bucket_manager": "normal",
    "experience_ratio": "0.5",
    "experience_start_sratio": "0.35",
    "exp_is_correct": "True",
    "experience_lbound": "0",
    "experience_rbound": "7",
}

REFERENCES = ", or pkg://module:name or path/file.py:name"


def test_the_defaults_are_the_values_of_the_script():
    assert (
        ExperienceConfig.from_mapping({}, 8)
        == ExperienceConfig.from_mapping(SCRIPT, 8)
        == ExperienceConfig(rollout_n=8)
    )


def test_strings_become_proper_types():
    config = ExperienceConfig.from_mapping({**SCRIPT, "experience": "false", "exp_seed": "7"}, "8")
    assert config.experience is False and config.exp_is_correct is True
    assert config.experience_ratio == 0.5 and isinstance(config.experience_ratio, float)
    assert config.experience_rbound == 7 and isinstance(config.experience_rbound, int)
    assert config.exp_seed == 7 and isinstance(config.exp_seed, int)


@pytest.mark.parametrize("value", [False, "False", "false", None, "None", "null"])
def test_no_bucket_manager_is_false_however_it_is_written(value):
    assert (
        ExperienceConfig.from_mapping({"exp_bucket_manager": value}, 8).exp_bucket_manager is False
    )


@pytest.mark.parametrize("value", [None, "null", "None"])
def test_rbound_defaults_to_all_but_the_retired(value):
    config = ExperienceConfig.from_mapping({"experience_rbound": value}, 4)
    assert config.experience_rbound == 3
    assert list(config.collected_buckets) == [1, 2, 3]


@pytest.mark.parametrize(("value", "steps"), [(None, None), ("null", None), ("3", 3), (1, 1)])
def test_so_many_steps_a_trajectory_stays_or_for_good(value, steps):
    assert (
        ExperienceConfig.from_mapping({"experience_max_age": value}, 8).experience_max_age == steps
    )


def test_bounds_are_exclusive_below_and_inclusive_above():
    config = ExperienceConfig(rollout_n=8, experience_lbound=2, experience_rbound=5)
    assert list(config.collected_buckets) == [3, 4, 5]


def test_foreign_keys_are_ignored_and_the_mapping_is_left_alone():
    trainer = {
        "experiment_name": "x",
        "total_epochs": 3,
        "logger": ["console"],
        "experience_ratio": 0.25,
    }
    before = dict(trainer)
    assert ExperienceConfig.from_mapping(trainer, 8).experience_ratio == 0.25
    assert trainer == before


def test_an_omegaconf_node_will_do():
    omegaconf = pytest.importorskip("omegaconf")
    node = omegaconf.OmegaConf.create({"exp_metric": "ppl", "experience_rbound": None, "nnodes": 1})
    assert ExperienceConfig.from_mapping(node, 8) == ExperienceConfig(rollout_n=8, exp_metric="ppl")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("exp_metrics", "trainer.exp_metrics: no such key; did you mean trainer.exp_metric?"),
        (
            "experience_ration",
            "trainer.experience_ration: no such key; did you mean trainer.experience_ratio?",
        ),
        (
            "exp_review_share",
            "trainer.exp_review_share: no such key",
        ),  # as all keys that 0.2.0 had and this has not
        ("exp_age_half_life", "trainer.exp_age_half_life: no such key"),
        ("exp_min_ess", "trainer.exp_min_ess: no such key"),
        ("experience_disk", "trainer.experience_disk: no such key"),
        ("experience_max_disk_bytes", "trainer.experience_max_disk_bytes: no such key"),
        (
            "exp_zzzzzzzz",
            "trainer.exp_zzzzzzzz: no such key; known keys are experience, experience_ratio",
        ),
    ],
)
def test_a_misspelt_key_is_refused_with_a_suggestion(key, message):
    with pytest.raises(ValueError) as error:
        ExperienceConfig.from_mapping({key: 1}, 8)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("experience", "yes", "true or false"),
        ("experience", 1.5, "true or false"),
        ("experience", None, "true or false"),
        ("experience_ratio", 1.5, "a number between 0 and 1"),
        ("experience_ratio", -0.1, "a number between 0 and 1"),
        ("experience_ratio", "half", "a number between 0 and 1"),
        ("experience_ratio", float("nan"), "a number between 0 and 1"),
        ("experience_ratio", True, "a number between 0 and 1"),
        ("experience_start_sratio", None, "a number between 0 and 1"),
        ("experience_lbound", -1, "an integer of at least 0"),
        ("experience_lbound", 0.5, "an integer of at least 0"),
        ("experience_lbound", 7, "less than trainer.experience_rbound=7"),
        ("experience_rbound", 9, "at most actor_rollout_ref.rollout.n=8"),
        ("experience_rbound", 0, "an integer of at least 1, or null"),
        ("exp_metric", "entropy", f"one of ent, ppl, random{REFERENCES}"),
        ("exp_select_mode", "min", "one of argmin, argmax"),
        ("exp_sample_range", "half", "one of all, first_half, last_half"),
        (
            "exp_bucket_manager",
            "gauss",
            f"one of normal, linear, sqrt, linear_clip, False{REFERENCES}",
        ),
        (
            "exp_bucket_manager",
            True,
            f"one of normal, linear, sqrt, linear_clip, False{REFERENCES}",
        ),
        ("exp_is_correct", "maybe", "true or false"),
        ("experience_skip_retired", None, "true or false"),
        ("exp_bucket_mean", 4, "a number between 0 and 1"),
        ("exp_bucket_mean", "batch", "a number between 0 and 1"),
        ("exp_bucket_sigma", 0, "a finite number above 0"),
        ("exp_bucket_sigma", "inf", "a finite number above 0"),
        ("exp_seed", -1, "an integer of at least 0"),
        ("experience_max_age", 0, "an integer of at least 1, or null"),
        ("experience_max_age", "few", "an integer of at least 1, or null"),
        ("experience_max_per_question", 0, "an integer of at least 1"),
        ("experience_max_trajectories", "many", "an integer of at least 1"),
    ],
)
def test_a_wrong_value_is_one_line_with_key_value_and_what_is_allowed(key, value, allowed):
    with pytest.raises(ValueError) as error:
        ExperienceConfig.from_mapping({key: value}, 8)
    assert str(error.value) == f"trainer.{key}={value}: must be {allowed}"


@pytest.mark.parametrize(
    ("key", "value"), [("experience_rbound", 8), ("experience_ratio", 0), ("experience_ratio", 1)]
)
def test_the_ends_of_a_range_are_allowed(key, value):
    assert getattr(ExperienceConfig.from_mapping({key: value}, 8), key) == value


def test_one_rollout_cannot_be_partially_solved():
    with pytest.raises(
        ValueError, match=r"^actor_rollout_ref\.rollout\.n=1: must be an integer of at least 2$"
    ):
        ExperienceConfig.from_mapping({}, 1)


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ExperienceConfig(rollout_n=8).exp_seed = 1
