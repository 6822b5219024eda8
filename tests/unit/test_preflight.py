"""What is wrong is said in one line before anything starts: by the real command and on composed
configurations.
"""

import os
import subprocess
import sys
from pathlib import Path

import hydra
import pandas as pd
import pytest
from composed import configuration, overrides
from omegaconf import OmegaConf

from exgrpo.on_verl.agent_loop import PrefixAgentLoop
from exgrpo.preflight.checks import resolve, verify


def test_all_checkpoints_may_be_kept_in_both_ways_of_verl(files):
    for keep in ("-1", "null", "2"):
        verify(configuration(files, f"trainer.max_actor_ckpt_to_keep={keep}"))


def test_a_right_configuration_passes(files):
    verify(configuration(files))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "trainer.experience_ratio=1.5",
            "trainer.experience_ratio=1.5: must be a number between 0 and 1",
        ),
        (
            "trainer.exp_metric=foo",
            "trainer.exp_metric=foo: must be one of ent, ppl, random, or pkg://",
        ),
        ("trainer.experience_rbound=9", "trainer.experience_rbound=9: must be at most"),
        (
            "actor_rollout_ref.actor.policy_loss.off_policy_reshape=foo",
            "policy_loss.off_policy_reshape=foo: must be",
        ),
        ("actor_rollout_ref.rollout.n=1", "actor_rollout_ref.rollout.n=1"),
        ("data.train_batch_size=24", "data.train_batch_size=24: data.train_files has 16 questions"),
        (
            "trainer.max_optim_to_keep=0",
            "trainer.max_optim_to_keep=0: must be an integer of at least 1",
        ),
        *(
            (
                f"trainer.max_actor_ckpt_to_keep={keep}",
                f"trainer.max_actor_ckpt_to_keep={keep}: must be 2 or more,",
            )
            for keep in ("1", "0", "-2", "2.5", "x")
        ),
        (
            "+trainer.remove_previous_ckpt_in_save=True",
            "remove_previous_ckpt_in_save=True: must be False",
        ),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
            "size=2: must be 1 with attn_implementation=sdpa",
        ),
        ("trainer.device=cpu", "stack=cpu and VERL_PLATFORM=cpu go together"),
        ("model_engine=megatron", "model_engine=megatron: must be dp; only FSDP's engine"),
        (
            "actor_rollout_ref.actor.strategy=megatron",
            "actor.strategy=megatron: must be fsdp2 or fsdp",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(files, wrong, message, monkeypatch):
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    with pytest.raises(ValueError) as caught:
        verify(configuration(files, wrong))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "allowed"),
    [
        *((f"loss_remove_clip={word}", "true or false") for word in ("no", "off", "1", "null")),
        *(
            (f"{side}_policy_reshape_{name}={value}", "a")
            for side in ("off", "on")
            for name in ("weight", "pow_exp")
            for value in ("nan", "inf", "text", "null")
        ),
    ],
)
def test_a_wrong_value_of_the_loss_is_refused(files, wrong, allowed):
    with pytest.raises(
        ValueError, match=rf"^policy_loss\.{wrong.split('=')[0]}=.*: must be {allowed}"
    ) as caught:
        verify(configuration(files, f"actor_rollout_ref.actor.policy_loss.{wrong}"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "value"), [("'False'", False), ("'true'", True), ("false", False)]
)
def test_a_truth_value_of_the_loss_may_be_a_text_and_means_what_it_says(files, word, value):
    config = configuration(files, f"actor_rollout_ref.actor.policy_loss.loss_remove_clip={word}")
    verify(config)
    resolve(config)
    assert config.actor_rollout_ref.actor.policy_loss.loss_remove_clip is value


@pytest.mark.parametrize(("ahead", "needed"), [(1, 32), (0.5, 24), (0.1, 17)])
def test_questions_in_flight_and_a_step_must_be_different_ones(files, ahead, needed):
    mode = [
        "trainer.v1.trainer_mode=colocate_async",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    ]
    mode += [f"trainer.v1.colocate_async.num_warmup_batches={ahead}"]
    verify(configuration(files, "data.train_batch_size=8", *mode))
    wrong = (
        f"batch_size=16: data.train_files has 16 questions, must have at least {needed} with "
        "trainer.v1.colocate"
    )
    with pytest.raises(ValueError, match=wrong):
        verify(configuration(files, "data.train_batch_size=16", *mode))
    verify(configuration(files, "data.train_batch_size=16"))


def test_a_cpus_variable_left_in_the_environment_of_a_gpu_run_is_named(files, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    with pytest.raises(
        ValueError, match=r"trainer\.device=cuda with VERL_PLATFORM=cpu in the environment"
    ):
        verify(configuration(files))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            "images",
            "data.image_key=images: {}/data.parquet has that column; a replayed trajectory "
            "is text only",
        ),
        ("videos", "data.video_key=videos: "),
        ("audios", "data.audio_key=audios: "),
        (
            "agent_name",
            "data.train_files: {}/data.parquet has a column agent_name; all rows must use "
            "one agent loop",
        ),
    ],
)
def test_a_column_replay_cannot_carry_is_named(files, column, message):
    pd.read_parquet(files / "data.parquet").assign(**{column: "x"}).to_parquet(
        files / "data.parquet"
    )
    with pytest.raises(ValueError) as caught:
        verify(configuration(files))
    assert message.format(files) in str(caught.value) and "\n" not in str(caught.value)
    verify(configuration(files, "trainer.experience=False"))


def test_a_model_with_a_processor_is_named(files):
    (files / "model" / "preprocessor_config.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"model: has a preprocessor_config\.json; a replayed trajectory is text"
    ):
        verify(configuration(files))
    verify(configuration(files, "trainer.experience=False"))


@pytest.mark.parametrize(
    "key", ["data.train_files", "data.val_files", "actor_rollout_ref.model.path"]
)
def test_a_missing_file_is_named(files, key):
    with pytest.raises(FileNotFoundError, match=f"{key}=/nowhere/x"):
        verify(configuration(files, f"{key}=/nowhere/x"))


def test_a_mistyped_folder_of_a_model_is_no_name_of_the_hub(files):
    key = "actor_rollout_ref.model.path"
    with pytest.raises(FileNotFoundError, match=f"{key}=models/mine/base: no such folder"):
        verify(configuration(files, f"{key}=models/mine/base"))


def test_the_grader_is_strict_or_full(files):
    key = "reward.custom_reward_function.reward_kwargs.grader"
    verify(configuration(files, f"{key}=full"))
    with pytest.raises(ValueError, match=f"{key}=lenient: must be one of strict, full"):
        verify(configuration(files, f"{key}=lenient"))


@pytest.mark.parametrize("word", ["no", "off", "'False'"])
def test_require_think_is_true_or_false(files, word):
    key = "reward.custom_reward_function.reward_kwargs.require_think"
    with pytest.raises(
        ValueError, match=f"{key}={word.strip(chr(39))}: must be true or false with reward"
    ) as caught:
        verify(configuration(files, f"{key}={word}"))
    assert "\n" not in str(caught.value)


def test_a_key_that_our_reward_does_not_have_is_named_with_those_it_has(files):
    wrong = "reward.custom_reward_function.reward_kwargs.require_thinks"
    known = "grader, require_think, timeout_s"
    with pytest.raises(ValueError, match=f"^{wrong}=False: no such key; known keys are {known}$"):
        verify(configuration(files, f"+{wrong}=False"))
    (files / "mine.py").write_text(
        'def compute_score(solution_str, **_):\n    return float("box" in solution_str)\n'
    )
    verify(
        configuration(
            files, f"reward.custom_reward_function.path={files}/mine.py", f"+{wrong}=False"
        )
    )


@pytest.mark.parametrize("limit", ["0", "-1", "5s", "inf"])
def test_the_time_limit_of_our_reward_is_a_number_of_seconds(files, limit):
    key = "reward.custom_reward_function.reward_kwargs.timeout_s"
    verify(configuration(files, f"+{key}=.5"))
    with pytest.raises(ValueError, match=f"^{key}={limit}: must be a number of seconds above 0$"):
        verify(configuration(files, f"+{key}={limit}"))


def test_a_missing_full_grader_is_named_with_how_to_install_it(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify_rules", None)
    verify(configuration(files))
    with pytest.raises(
        ValueError,
        match=r"math-verify-rules, which is not installed: pip install \./packages/math-",
    ):
        verify(configuration(files, "reward.custom_reward_function.reward_kwargs.grader=full"))


def test_a_missing_math_verify_is_named(files, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="the package math-verify is not installed"):
        verify(configuration(files))
    (files / "mine.py").write_text(
        'def compute_score(solution_str, **_):\n    return float("box" in solution_str)\n'
    )
    verify(configuration(files, f"reward.custom_reward_function.path={files}/mine.py"))


def test_seeded_rollouts_are_an_agent_loop_verl_can_load(files):
    config = configuration(files, "trainer.rollout_seeded=True")
    resolve(config)
    agent = config.actor_rollout_ref.rollout.agent
    loops = {loop.name: loop for loop in OmegaConf.load(agent.agent_loop_config_path)}
    assert hydra.utils.get_class(loops[agent.default_agent_loop]._target_).run


def test_prefixes_are_an_agent_loop_also_with_seeds(files):
    for seeded, name in ((False, "exgrpo_prefix"), (True, "exgrpo_seeded")):
        config = configuration(files, "trainer.exp_unit=prefix", f"trainer.rollout_seeded={seeded}")
        resolve(config)
        assert config.actor_rollout_ref.rollout.agent.default_agent_loop == name
        (target,) = [
            each._target_
            for each in OmegaConf.load(
                config.actor_rollout_ref.rollout.agent.agent_loop_config_path
            )
            if each.name == name
        ]
        assert issubclass(hydra.utils.get_class(target), PrefixAgentLoop)


def test_seeds_differ_between_runs_places_and_sessions():
    from exgrpo.on_verl.agent_loop import sampling_seed

    seeds = {
        sampling_seed(run, f"0000001q{place:05d}", k)
        for run in (1, 2)
        for place in range(50)
        for k in range(8)
    }
    assert len(seeds) == 800 and all(0 <= seed < 2**31 for seed in seeds)
    assert sampling_seed(1, "a", 0) == sampling_seed(1, "a", 0)


def test_relative_paths_are_resolved_where_the_command_is_given(files, monkeypatch):
    monkeypatch.chdir(files)
    relative = [
        "data.train_files=data.parquet",
        "actor_rollout_ref.model.path=model",
        "trainer.default_local_dir=out",
    ]
    config = configuration(files, *relative)
    verify(config)
    resolve(config)
    assert config.data.train_files == f"{files}/data.parquet"
    assert config.actor_rollout_ref.model.path == f"{files}/model"
    assert config.trainer.default_local_dir == f"{files}/out"


def test_the_command_says_one_line_and_fails_before_ray_starts(files):
    environment = {key: value for key, value in os.environ.items() if key != "VERL_PLATFORM"}
    arguments = [
        sys.executable,
        "-m",
        "exgrpo.main_mix_ppo",
        *overrides(files, "trainer.experience_ratio=1.5"),
    ]
    result = subprocess.run(
        arguments, capture_output=True, text=True, env=environment, cwd=files, timeout=120
    )
    assert result.returncode != 0
    said = [line for line in result.stderr.splitlines() if line.startswith("exgrpo: ")]
    assert said == ["exgrpo: trainer.experience_ratio=1.5: must be a number between 0 and 1"]
    assert "ray init" not in result.stdout


def test_the_recipes_print_their_configuration_on_any_machine():
    scripts = Path(__file__).parents[2] / "exp_scripts"
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("MODEL_PATH", "VERL_PLATFORM")
    }
    result = subprocess.run(
        [
            "bash",
            scripts / "recipes" / "llama3.1_8b.sh",
            "--cfg",
            "job",
            "trainer.experience_ratio=0.25",
        ],
        capture_output=True,
        text=True,
        env=environment | {"PYTHON": sys.executable},
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    printed = (
        "experience_ratio: 0.25",
        "experience_start_sratio: 0",
        "/models/Llama-3.1-8B-step-by-step",
    )
    for line in (*printed, "require_think: false"):
        assert line in result.stdout


def test_a_recipe_names_everything_that_is_missing():
    script = Path(__file__).parents[2] / "exp_scripts" / "run_exgrpo.sh"
    environment = {
        k: v for k, v in os.environ.items() if k not in ("MODEL_PATH", "DATA_DIR", "SAVE_PATH")
    }
    result = subprocess.run(
        ["bash", script], capture_output=True, text=True, env=environment, timeout=60
    )
    assert result.returncode == 2
    assert all(name in result.stderr for name in ("MODEL_PATH", "DATA_DIR", "SAVE_PATH"))
    command = ["bash", script, "data.val_files=mine.parquet", "data.train_files=mine.parquet"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert "MODEL_PATH" in result.stderr and "DATA_DIR" not in result.stderr
    result = subprocess.run(
        command[:-1], capture_output=True, text=True, env={**environment, "DATA_DIR": "/nowhere"}
    )
    assert (
        "/nowhere/openr1.parquet: no such file" in result.stderr
        and "valid.parquet" not in result.stderr
    )
