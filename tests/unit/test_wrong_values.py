"""No wrong value passes the checks of the command: each ends in one line, before Ray; right ones
pass.
"""

import json
import random
import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
import ray
from composed import configuration, job
from omegaconf import OmegaConf

from exgrpo.experience.config import ExperienceConfig, TrainerKeys
from exgrpo.loss_settings import LossSettings
from exgrpo.main_mix_ppo import _compose, verify_for_verl
from exgrpo.on_verl.loss_shares import LossShares
from exgrpo.preflight import checks, machine, values
from exgrpo.preflight.checks import verify
from exgrpo.preflight.unknown_keys import explain

EXP_SCRIPTS = Path(__file__).parents[2] / "exp_scripts"
ENOUGH = [
    "+ray_kwargs.ray_init.address=local",
    "ray_kwargs.ray_init.num_cpus=64",
    "+ray_kwargs.ray_init.num_gpus=8",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
]
LOSS = "actor_rollout_ref.actor.policy_loss"


def check(config):
    """As the training command, before Ray starts."""
    checks.check(config)
    verify_for_verl(config)


def wrong_values():
    """300 (key, wrong value), the same in every run, of all keys of verl's and ours that have a
    kind.
    """
    draw = random.Random(38)
    kinds = {
        key: "optional " * (rule.get("optional", False) and rule["kind"] == "choice") + rule["kind"]
        for key, rule in values.alone().items()
    }
    for key, default in values.defaults().items():
        if isinstance(default, bool | int | float) and key not in kinds:
            kinds[key] = "boolean" if isinstance(default, bool) else "number"
    for keys, before in (
        (ExperienceConfig, "trainer"),
        (TrainerKeys, "trainer"),
        (LossSettings, LOSS),
    ):
        ours = {"bool": "boolean", "int": "integer", "float": "number"}
        names = [field.name for field in fields(keys) if str(field.type).split(" ")[0] in ours]
        kinds |= {
            f"{before}.{name}": "number"
            for name in names
            if name not in ("rollout_n", "loss_remove_clip")
        }
    wrong = {
        "boolean": ["no", "off", 3, [True]],
        "integer": ["abc", float("nan"), 2.5, True, -7, [1]],
        "number": ["1e-4x", float("nan"), float("inf"), "high", [1]],
        "text": [7, None, [1]],
        "choice": ["xyz", 3, None],
        "optional choice": ["xyz", 3],
        "file": ["/nope.py", 3, ["a"]],
        "module": ["nope_lib", "torch.nope", "nope.lib", 3],
        "list": ["model", 3, None],
        "group": ["xyz", 3],
    }
    known = job(*ENOUGH)
    there = [
        key for key in sorted(kinds) if OmegaConf.select(known, key.rpartition(".")[0]) is not None
    ]
    there = [
        key
        for key in there
        if key.rpartition(".")[2] in OmegaConf.select(known, key.rpartition(".")[0])
    ]
    assert len(there) > 300
    return [(key, draw.choice(wrong[kinds[key]])) for key in draw.sample(there, 300)]


def start(*arguments, **settings):
    raise AssertionError("Ray was started")


@pytest.fixture
def base(files, monkeypatch):
    """A right configuration; within the test any start of Ray is an error. Another test may have
    left one running.
    """
    monkeypatch.setattr(ray, "init", start)
    return configuration(files, *ENOUGH)


def refusal(config):
    """What the command would say, line by line; anything but these errors would be a traceback."""
    with pytest.raises((ValueError, OSError)) as caught:
        check(config)
    return str(caught.value).splitlines()


def test_each_of_300_wrong_values_is_refused_in_one_line_that_names_its_key(base):
    passed = []
    for key, value in wrong_values():
        config = base.copy()
        OmegaConf.update(config, key, value)
        try:
            lines = refusal(config)
        except pytest.fail.Exception:
            passed.append((key, value))
            continue
        if not (len(lines) == 1 and key.rpartition(".")[2] in lines[0]):
            passed.append((key, value, lines))
    assert passed == []


def test_a_right_configuration_passes_everything_that_the_command_checks(base):
    check(base)


def test_all_wrong_values_of_a_command_are_said_at_once(files):
    wrong = [
        "trainer.save_freq=x",
        "actor_rollout_ref.actor.optim.lr=nan",
        "trainer.exp_seed=-1",
        "trainer.logger=wandbb",
    ]
    wrong += [f"{LOSS}.loss_remove_clip=no", "trainer.val_before_train=no", "trainer.nnodes=0"]
    lines = refusal(configuration(files, *ENOUGH, *wrong))
    assert len(lines) == len(wrong)
    for name in wrong:
        assert sum(name.partition("=")[0].rpartition(".")[2] in line for line in lines) == 1, name


@pytest.mark.parametrize(
    "wrong",
    [
        "data.train_max_samples=3",
        "data.max_prompt_length=2",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100",
        "trainer.resume_mode=resume_path",
        "trainer.resume_from_path=/nope",
        "trainer.v1=5",
        "data.seed=abc",
        "data.seed=???",
        "reward.custom_reward_function.path=/nope.py",
        "reward.custom_reward_function.name=nope",
        "actor_rollout_ref.rollout.name=sglang",
        "trainer.experiment_name=2026",
        "data.max_response_length=${nope}",
        "reward.reward_manager.name=nope",
        "trainer.v1.sampler.max_off_policy_threshold=0",
        "data.train_files=[]",
        "data.val_files=[]",
    ],
)
def test_what_fails_late_or_is_ignored_is_refused(files, wrong):
    (line,) = refusal(configuration(files, *ENOUGH, wrong))
    assert wrong.partition("=")[0].rpartition(".")[2] in line or "nope" in line


STORAGE = "transfer_queue.backend.SimpleStorage"
ROLLOUT = "actor_rollout_ref.rollout"
CHECKPOINT = "actor_rollout_ref.actor.checkpoint"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (f"{CHECKPOINT}.save_contents=[weights]", "must be a list of model and, as wanted, "),
        (f"{CHECKPOINT}.save_contents=[]", "would go on from the base model"),
        (f"{CHECKPOINT}.save_contents=[optimizer,extra]", "must be a list of model"),
        (f"{CHECKPOINT}.save_contents=[model,weights]", "optimizer, extra and hf_model; "),
        (f"{CHECKPOINT}.load_contents=[foo]", "must be a list of model"),
        ("trainer.save_freq=0", "at least 1, or -1 for never"),
        ("trainer.logger=[]", "must be one or more of wandb, "),
        ("trainer.default_local_dir=/proc/x", "a new one that can be made; No such file"),
        ("trainer.rollout_data_dir=/dev/null/x", "a new one that can be made; Not a directory"),
        ("trainer.validation_data_dir=/etc/passwd/x", "can be made; Not a directory"),
        ("ray_kwargs.timeline_json_file=/nope/x.json", "its folder must be there"),
        ("data.custom_cls.path=/nope.py", "must be a file that is there, or pkg:// and a module"),
        ("data.custom_cls.path=pkg://exgrpo.nope", "must be a file that is there, or pkg:// and"),
        ("data.tool_config_path=/nope.yaml", "must be a file that is there"),
        (f"{ROLLOUT}.multi_turn.function_tool_path=/nope.py", "must be a file that is there"),
        (f"{ROLLOUT}.agent.agent_loop_config_path=nope.yaml", "must be a file that is there"),
        ("actor_rollout_ref.model.external_lib=nope_lib", "must be a module that can be imported"),
        (f"{ROLLOUT}.checkpoint_engine.custom_backend_module=nope.lib", "must be a module that "),
        (f"{ROLLOUT}.checkpoint_engine.backend=nope", "must be naive, nccl, nixl, "),
        (f"{ROLLOUT}.load_format=nope", "must be one of auto, "),
        (f"{ROLLOUT}.logprobs_mode=nope", "must be one of raw_logits, raw_logprobs, "),
        (f"{ROLLOUT}.quantization=nope", "must be one of fp8, torchao, "),
        ("algorithm.rollout_correction.rollout_is=nope", "must be one of token, sequence"),
        ("global_profiler.tool=nope", "must be null, nsys, "),
        ("actor_rollout_ref.actor.optim.optimizer=Adamm", "must be an optimizer of torch.optim"),
        ("actor_rollout_ref.actor.optim.optimizer_impl=torch.nope", "must be a module that can "),
        ("actor_rollout_ref.actor.optim.lr=1e6", "must be a finite number from 0 to 1"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=3", "must divide data.train_batch_size=8"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=16", "must divide data.train_batch_size=8"),
        ("trainer.rollout_poll_interval=1e9", "must be a number of seconds above 0, at most 60"),
        ("data.reward_fn_key=nope", "must be data_source"),
        (f"{ROLLOUT}.max_num_batched_tokens=1", f"must be at least {ROLLOUT}.max_num_seqs="),
        (f"{STORAGE}.total_storage_size=1", "must be at least data.train_batch_size=8"),
        ("+trainer.experiance=True", "nobody reads it; did you mean trainer.experience?"),
        ("+trainer.rollout_seded=True", "nobody reads it; did you mean trainer.rollout_seeded?"),
        ("+data.train_file=x", "nobody reads it; did you mean data.train_files?"),
        ("global_profiler.steps=abc", "must be a list of steps, or null"),
        (f"{LOSS}.off_policy_min_clip=5", "must be below 1, as all f(w) of p_div_p are"),
        ("actor_rollout_ref.actor.optim.betas=[2,2]", "must be a list of two numbers of at "),
        ("actor_rollout_ref.actor.optim.betas=[0.9]", "must be a list of two numbers of at "),
        ("actor_rollout_ref.actor.optim.betas=0.9", "must be a list of two numbers of at "),
    ],
)
def test_values_that_passed_are_refused_with_what_is_allowed(files, wrong, said):
    (line,) = refusal(configuration(files, *ENOUGH, wrong))
    key = wrong.partition("=")[0]
    assert line.startswith((f"{key}=", f"{key.removeprefix('actor_rollout_ref.actor.')}="))
    assert said in line


def test_a_bound_that_a_value_must_be_above_is_itself_refused(files):
    bounds = {key: rule["above"] for key, rule in values.alone().items() if "above" in rule}
    config = configuration(files, *ENOUGH)
    for key, bound in bounds.items():
        OmegaConf.update(config, key, bound, force_add=True)
    lines = refusal(config)
    assert bounds and [key for key in bounds if not any(key in line for line in lines)] == []


@pytest.mark.parametrize("given", ["top_p=0.9", "top_k=20"])
def test_a_truncated_rollout_gets_one_line_that_says_what_the_ratio_becomes(files, given, caplog):
    verify(configuration(files, *ENOUGH, f"{ROLLOUT}.{given}"))
    (said,) = [line for line in caplog.messages if "importance ratio" in line]
    assert given in said
    caplog.clear()
    verify(configuration(files, *ENOUGH))
    assert "importance ratio" not in caplog.text


def test_a_checkpoint_may_be_the_weights_alone(files):
    verify(configuration(files, *ENOUGH, f"{CHECKPOINT}.save_contents=[model]"))


@pytest.mark.parametrize(
    "group",
    [
        "trainer",
        "data",
        "trainer.v1.sampler",
        "actor_rollout_ref.actor.checkpoint",
        "actor_rollout_ref.actor.checkpoint.load_contents",
        LOSS,
        "reward.custom_reward_function",
        "reward.custom_reward_function.reward_kwargs",
        "ray_kwargs.ray_init",
        "transfer_queue.backend",
    ],
)
def test_null_in_the_place_of_a_group_of_keys_is_one_line(files, group):
    (line,) = refusal(configuration(files, *ENOUGH, f"{group}=null"))
    assert line.startswith(f"{group}=null: must be a ")


@pytest.mark.parametrize("group", ["algorithm.filter_groups", "algorithm.rollout_correction"])
def test_null_is_off_where_it_is_for_verl(files, group):
    config = configuration(files, *ENOUGH, f"{group}=null")
    check(config)
    assert LossShares.of_config(config).known


def test_a_text_is_what_hydra_would_read_it_as(files):
    config = configuration(files)
    OmegaConf.update(config, "trainer.save_freq", "4")
    OmegaConf.update(config, "trainer.val_before_train", "false")
    verify(config)
    assert (config.trainer.save_freq, config.trainer.val_before_train) == (4, False)


@pytest.mark.parametrize(
    ("key", "given", "meant"),
    [
        ("max_optim_to_keep", "None", None),
        ("max_optim_to_keep", 2.0, 2),
        ("rollout_poll_interval", "0.05", 0.05),
        ("experience", "False", False),
        ("exp_seed", "7", 7),
        ("experience_import", "None", None),
    ],
)
def test_a_value_of_ours_reaches_the_trainer_as_what_it_was_checked_as(files, key, given, meant):
    config = configuration(files)
    OmegaConf.update(config, f"trainer.{key}", given)
    verify(config)
    assert (config.trainer[key], type(config.trainer[key])) == (meant, type(meant))


SCRIPTS = [
    "run_exgrpo.sh",
    "run_on_policy.sh",
    *sorted(f"recipes/{each.name}" for each in (EXP_SCRIPTS / "recipes").iterdir()),
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_values_of_a_recipe_pass(script, tmp_path):
    (tmp_path / "print_arguments").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "print_arguments").chmod(0o755)
    for name in ("openr1.parquet", "valid.parquet"):
        (tmp_path / name).touch()
    folders = {name: str(tmp_path) for name in ("MODEL_PATH", "DATA_DIR", "SAVE_PATH")}
    environment = {"PYTHON": str(tmp_path / "print_arguments"), "PATH": "/usr/bin:/bin", **folders}
    done = subprocess.run(
        ["bash", EXP_SCRIPTS / script], capture_output=True, text=True, env=environment, check=True
    )
    config = job(*[line for line in done.stdout.splitlines() if "=" in line])
    values.verify(config)
    machine.verify_cpus(config, 64)


@pytest.mark.parametrize("stack", [[], ["stack=one_gpu"], ["stack=cpu"], ["stack=cpu_separate"]])
def test_the_values_of_each_stack_pass(stack):
    config = job(*stack)
    values.verify(config)
    machine.verify_cpus(config, OmegaConf.select(config, "ray_kwargs.ray_init.num_cpus") or 64)


def test_an_unknown_key_gets_the_nearest_name():
    from hydra.errors import HydraException

    def said(*overrides):
        with pytest.raises(HydraException) as caught:
            _compose(list(overrides))
        return explain(caught.value, overrides, _compose)

    first, second = said("trainer.save_freqq=3", "trainer.total_epochs=2", "trainer.lr=1e-6")
    assert first == "trainer.save_freqq=3: no such key; did you mean trainer.save_freq?"
    assert re.search(r"did you mean \S+\.optim\.lr\?$", second)
    gone = said("trainer.exp_max_candidates=4", f"{LOSS}.off_policy_m2_bound=0.1")
    assert (
        gone[0]
        == "trainer.exp_max_candidates=4: no such key; it is gone: every candidate is scored"
    )
    assert "no such key; it is gone: a loss of your own" in gone[1]
    (line,) = said("stack=nope")
    assert "Could not find 'stack/nope'" in line and "one_gpu" in line and "search path" not in line


RULES = """
import torch
def raises(*arguments): raise KeyError("x")
def short(*arguments): return [1.0]
def nothing(*arguments): return None
def unknown(*arguments): return float("nan")
def fine(log_ratio, log_prob, weight, pow_exp): return log_ratio.exp()
def detached(log_ratio, *arguments): return log_ratio.detach().exp()
"""
KEYS = ["exp_bucket_manager", "exp_metric", "exp_difficulty", "exp_retirement", "exp_eviction"]
KEYS = [f"trainer.{name}" for name in KEYS]
KEYS += [
    f"{LOSS}.{name}" for name in ("off_policy_reshape", "on_policy_reshape", "off_policy_loss")
]


@pytest.mark.parametrize("key", KEYS)
def test_a_rule_that_raises_or_returns_something_else_is_refused_by_name(files, key):
    (files / "rules.py").write_text(RULES)
    for rule, got in (
        ("raises", "raises KeyError"),
        ("nothing", "returns None"),
        ("short", "returns [1.0]"),
    ):
        (line,) = refusal(configuration(files, *ENOUGH, f"{key}={files}/rules.py:{rule}"))
        name = key.rpartition(".")[2]
        assert f"{name}={files}/rules.py:{rule}: {got}" in line and "must return" in line


@pytest.mark.parametrize("name", ["exp_metric", "exp_eviction"])
def test_a_score_that_is_no_number_is_refused(files, name):
    (files / "rules.py").write_text(RULES)
    (line,) = refusal(configuration(files, *ENOUGH, f"trainer.{name}={files}/rules.py:unknown"))
    assert line.endswith("returns nan for a toy step: must return a number")


@pytest.mark.parametrize("name", ["off_policy_reshape", "off_policy_loss"])
def test_a_rule_of_the_loss_without_a_gradient_is_refused(files, name):
    (files / "rules.py").write_text(RULES)
    (line,) = refusal(configuration(files, *ENOUGH, f"{LOSS}.{name}={files}/rules.py:detached"))
    assert "must return a tensor of finite numbers with a gradient" in line


def test_a_right_rule_passes_and_a_reward_must_take_what_it_is_handed(files):
    (files / "rules.py").write_text(RULES)
    check(configuration(files, *ENOUGH, f"{LOSS}.off_policy_reshape={files}/rules.py:fine"))
    (line,) = refusal(
        configuration(
            files,
            *ENOUGH,
            f"reward.custom_reward_function.path={files}/rules.py",
            "reward.custom_reward_function.name=fine",
        )
    )
    assert "must take the arguments data_source, solution_str" in line


RIGHT = {
    "prompt": [{"role": "user", "content": "q"}],
    "data_source": "t",
    "reward_model": {"ground_truth": "1"},
}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt", "text"),
        ("prompt", None),
        ("prompt", []),
        ("prompt", [{"role": "user"}]),
        ("extra_info", "text"),
        ("data_source", None),
        ("reward_model", {"style": "rule"}),
        ("reward_model", None),
    ],
)
def test_a_row_of_another_form_is_named_with_its_file(files, column, value):
    pd.DataFrame([RIGHT | {column: value}]).to_parquet(files / "wrong.parquet")
    (line,) = refusal(configuration(files, *ENOUGH, f"data.val_files={files}/wrong.parquet"))
    assert (
        f"data.val_files={files}/wrong.parquet: row 0, column {column}: " in line
        and "must be" in line
    )


@pytest.mark.parametrize("column", ["prompt", "data_source", "reward_model"])
def test_a_missing_column_and_an_unreadable_file_are_named(files, column):
    pd.DataFrame([{key: value for key, value in RIGHT.items() if key != column}]).to_parquet(
        files / "wrong.parquet"
    )
    (line,) = refusal(configuration(files, *ENOUGH, f"data.val_files={files}/wrong.parquet"))
    assert f"wrong.parquet: has no column {column}" in line
    (files / "wrong.parquet").write_text("no parquet")
    (line,) = refusal(configuration(files, *ENOUGH, f"data.val_files={files}/wrong.parquet"))
    assert "cannot be read as .parquet" in line


def test_rows_of_json_that_nest_deeply_are_refused_since_from_20_000_levels_on_the_parser_overflows(
    files,
):
    right = json.dumps(RIGHT | {"extra_info": {"note": '\\" [' * 200}})
    deep = f'{right[:-1]}, "deep": {"[" * 101}{"]" * 101}}}'
    (files / "wrong.jsonl").write_text(f"{right}\n{right}\n")
    verify(configuration(files, *ENOUGH, f"data.val_files={files}/wrong.jsonl"))
    (files / "wrong.jsonl").write_text(f"{right}\n{deep}\n")
    (line,) = refusal(configuration(files, *ENOUGH, f"data.val_files={files}/wrong.jsonl"))
    assert "wrong.jsonl: cannot be read as .jsonl (line 2 nests more than 100 levels)" in line


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        ("", "must have text that is not empty as ground_truth"),
        (["1", " "], "must have text that is not empty as ground_truth"),
        (12345678901234567890120, "must have text as ground_truth: as a number of so many digits"),
    ],
)
def test_a_gold_that_cannot_be_won_is_refused(files, gold, said):
    rows = [RIGHT | {"reward_model": {"ground_truth": gold}} for _ in range(2)]
    (files / "wrong.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (line,) = refusal(configuration(files, *ENOUGH, f"data.val_files={files}/wrong.jsonl"))
    assert "wrong.jsonl: row 0, column reward_model: " in line and said in line


def test_a_list_of_golds_is_right(files):
    pd.DataFrame([RIGHT | {"reward_model": {"ground_truth": ["1", "one"]}}]).to_parquet(
        files / "right.parquet"
    )
    verify(configuration(files, *ENOUGH, f"data.val_files={files}/right.parquet"))
