"""The real trainer on the CPU, end to end: with an imported pool, and without replay."""

import json
import os
import shlex
import subprocess

import pandas as pd
import pytest
from test_exact_resume import load_tokenizer
from training_run import K, Run

from exgrpo.data_files import read_question_ids
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import fingerprint, question_id, tokenizer_fingerprint
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved.pool_folder import PoolFolder
from verl_cpu.prepared_workers import FIRST_JOB


def test_without_replay_it_is_grpo_through_the_same_program(settings, forks, tmp_path):
    arguments = [
        "exgrpo.main_mix_ppo",
        *settings,
        forks,
        "trainer.experience=False",
        "trainer.total_training_steps=2",
    ]
    arguments += [
        "actor_rollout_ref.actor.use_kl_loss=True",
        "trainer.val_before_train=True",
        "trainer.save_freq=-1",
    ]
    steps = Run(tmp_path, arguments, "on_policy").wait()
    assert sorted(steps) == [0, 1, 2]
    assert not [key for key in steps[2] if key.startswith("experience/")]
    assert (
        "actor/pg_clipfrac" in steps[2] and "actor/kl_loss" in steps[2]
    )  # verl's own loss, with its reference model


DRAW = """import json, os, ray
print(json.dumps([os.getppid(), ray.ObjectID.from_random().hex(), ray.ActorClassID.from_random().hex()]))
"""  # noqa: E501


def test_no_two_workers_draw_the_same_ids_of_ray(prepared, tmp_path):
    """Two that start in the same moment would make the same object, on which one ends and the
    training waits for it.
    """
    (tmp_path / "draw.py").write_text(DRAW)
    command, environment = (
        [*shlex.split(prepared), "draw.py"],
        os.environ | {"RAY_JOB_ID": FIRST_JOB},
    )
    said = [subprocess.check_output(command, env=environment, cwd=tmp_path) for _ in range(2)]
    (parent, *ids), (same_parent, *others) = map(json.loads, said)
    assert parent == same_parent != os.getpid() and not {*ids} & {*others}


def teacher(questions, folder):
    """A pool of right answers to the training questions, by an author whose log-probs
    nobody knows.
    """
    files, tokenizer = [str(questions / "train.parquet")], load_tokenizer()
    pool = ExperiencePool(ExperienceConfig(rollout_n=K))
    for prompt, answer in pd.read_parquet(files[0])[["prompt", "reward_model"]].itertuples(
        index=False
    ):
        tokens = tokenizer.encode(f"\\boxed{{{answer['ground_truth']}}}<|im_end|>")
        pool.file(
            question_id(prompt[-1]["content"]), 2, Trajectory.without_log_probs(tokens, step=0)
        )
    identity = {"data_fingerprint": fingerprint(read_question_ids(files, "prompt"))}
    PoolFolder().save(pool, folder, 0, identity | {"tokenizer": tokenizer_fingerprint(tokenizer)})
    return folder


def test_a_run_starts_with_an_imported_pool_and_updates_above_the_bound_are_skipped(
    settings, forks, questions, tmp_path
):
    arguments = [
        "exgrpo.main_mix_ppo",
        *settings,
        forks,
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
    ]
    arguments += [
        "actor_rollout_ref.actor.optim.skip_grad_bound=1e-9",
        "trainer.experience_start_sratio=0",
    ]
    arguments += ["trainer.exp_metric=random", "actor_rollout_ref.actor.entropy_coeff=0.001"]
    arguments += [f"trainer.experience_import={teacher(questions, tmp_path / 'teacher')}"]
    steps = Run(tmp_path, arguments, "skip").wait()
    assert steps[1]["experience/replayed_groups"] == 4 and steps[1]["experience/replay_age"] == 1
    assert steps[1]["actor/skipped_update"] == steps[2]["actor/skipped_update"] == 1
    # nothing was learned: what is weighed against this step's policy, or was written by it, has
    # ratios of 1
    assert steps[2]["actor/replayed_ratio_max"] == pytest.approx(1, abs=1e-4)


HIS = """
from verl.utils.dataset.rl_dataset import RLHFDataset


class Mine(RLHFDataset):
    pass


def reward(data_source, solution_str, ground_truth, extra_info=None):
    return 2.0 * (ground_truth in solution_str)
"""


def test_verls_own_command_trains_with_replay_and_keeps_what_is_the_users(
    settings, forks, questions, tmp_path
):
    (tmp_path / "his.py").write_text(HIS)
    arguments = [
        "verl.trainer.main_ppo",
        "--config-path",
        "pkg://exgrpo.config",
        "--config-name",
        "exgrpo_trainer",
        "method=replay_only",
    ]
    arguments += [each for each in settings if "require_think" not in each]
    arguments += [forks, "trainer.total_training_steps=6", "trainer.save_freq=-1"]
    arguments += [
        "algorithm.adv_estimator=grpo",
        f"reward.custom_reward_function.path={tmp_path}/his.py",
        "reward.custom_reward_function.name=reward",
        f"data.custom_cls.path={tmp_path}/his.py",
        "data.custom_cls.name=Mine",
        "trainer.experience_start_sratio=0",
        f"trainer.experience_import={teacher(questions, tmp_path / 't')}",
    ]
    run = Run(tmp_path, arguments, "verls")
    steps = run.wait()
    assert sorted(steps) == [1, 2, 3, 4, 5, 6] and steps[1]["experience/replayed_groups"] == 4
    assert {*run.scores(2).values()} <= {0.0, 1.0, 2.0}  # 1: of imported trajectories
    assert "Using dataset class: Mine" in run.log.read_text()
