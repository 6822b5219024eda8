"""The real trainer on the CPU, end to end: with an imported pool, without replay, and what the plug-in leaves alone."""

import json
import os
import shlex
import subprocess
import sys

import pandas as pd
import pytest
from test_exact_resume import load_tokenizer
from training_run import ROOT, K, Run

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import fingerprint, question_id, tokenizer_fingerprint
from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl.cpu.prepared_workers import FIRST_JOB
from exgrpo.preflight.train_files import read_question_ids
from exgrpo.saved.pool_folder import PoolFolder


def test_without_replay_it_is_grpo_through_the_same_program(settings, forks, tmp_path):
    arguments = ["exgrpo.main_mix_ppo", *settings, forks, "trainer.experience=False", "trainer.total_training_steps=2"]
    arguments += ["actor_rollout_ref.actor.use_kl_loss=True", "trainer.val_before_train=True", "trainer.save_freq=-1"]
    steps = Run(tmp_path, arguments, "on_policy").wait()
    assert sorted(steps) == [0, 1, 2]
    assert not [key for key in steps[2] if key.startswith("experience/")]
    assert "actor/pg_clipfrac" in steps[2] and "actor/kl_loss" in steps[2]  # verl's own loss, with its reference model


VERLS = ["verl.workers.engine_workers", "vllm.v1.engine.async_llm"]
DRAW = """import json, os, ray
print(json.dumps([os.getppid(), ray.ObjectID.from_random().hex(), ray.ActorClassID.from_random().hex()]))
"""


def test_no_two_workers_draw_the_same_ids_of_ray(prepared, tmp_path):
    """Two that start in the same moment would make the same object, on which one ends and the training waits for it."""
    (tmp_path / "draw.py").write_text(DRAW)
    command, environment = [*shlex.split(prepared), "draw.py"], os.environ | {"RAY_JOB_ID": FIRST_JOB}
    said = [subprocess.check_output(command, env=environment, cwd=tmp_path) for _ in range(2)]
    (parent, *ids), (same_parent, *others) = map(json.loads, said)
    assert parent == same_parent != os.getpid() and not {*ids} & {*others}


def teacher(questions, folder):
    """A pool of right answers to the training questions, by an author whose log-probs nobody knows."""
    files, tokenizer = [str(questions / "train.parquet")], load_tokenizer()
    pool = ExperiencePool(ExperienceConfig(rollout_n=K))
    for prompt, answer in pd.read_parquet(files[0])[["prompt", "reward_model"]].itertuples(index=False):
        tokens = tokenizer.encode(f"\\boxed{{{answer['ground_truth']}}}<|im_end|>")
        pool.file(question_id(prompt[-1]["content"]), 2, Trajectory.without_log_probs(tokens, step=0))
    identity = {"data_fingerprint": fingerprint(read_question_ids(files, "prompt"))}
    PoolFolder().save(pool, folder, 0, identity | {"tokenizer": tokenizer_fingerprint(tokenizer)})
    return folder


def test_a_run_starts_with_an_imported_pool_and_updates_above_the_bound_are_skipped(
    settings, forks, questions, tmp_path
):
    arguments = ["exgrpo.main_mix_ppo", *settings, forks, "trainer.total_training_steps=2", "trainer.save_freq=-1"]
    arguments += ["actor_rollout_ref.actor.optim.skip_grad_bound=1e-9", "trainer.experience_start_sratio=0"]
    arguments += ["trainer.exp_metric=random", "actor_rollout_ref.actor.entropy_coeff=0.001"]
    arguments += [f"trainer.experience_import={teacher(questions, tmp_path / 'teacher')}"]
    steps = Run(tmp_path, arguments, "skip").wait()
    assert steps[1]["experience/replayed_groups"] == 4 and steps[1]["experience/replay_age"] == 1
    assert steps[1]["actor/skipped_update"] == steps[2]["actor/skipped_update"] == 1
    # nothing was learned: what is weighed against this step's policy, or was written by it, has ratios of 1
    assert steps[2]["actor/replayed_ratio_max"] == pytest.approx(1, abs=1e-4)


LOADED = """import sys
print(*sorted(name for name in sys.modules if name.startswith("exgrpo.")))
"""


def test_forks_for_verls_own_program_have_of_the_plug_in_what_verl_loads(prepared_verl, tmp_path):
    (tmp_path / "loaded.py").write_text(LOADED)
    command, environment = [*shlex.split(prepared_verl), "loaded.py"], os.environ | {"RAY_JOB_ID": FIRST_JOB}
    forked = subprocess.check_output(command, env=environment, cwd=tmp_path, text=True).split()
    (tmp_path / "loaded.py").write_text(f"import {', '.join(VERLS)}\n{LOADED}")
    platform = os.environ | {"VERL_PLATFORM": "cpu"}
    own = subprocess.check_output([sys.executable, "loaded.py"], env=platform, cwd=tmp_path, text=True).split("\n")[-2]
    preparing = {name for name in forked if name.startswith("exgrpo.prepared") or name.endswith("verl_imports")}
    assert len(preparing) == 4 and {*forked} - preparing == {*own.split()} != set()


V1 = "trainer.v1"
PLAIN = {
    "sync": ["+stack=cpu"],
    "colocate_async": ["+stack=cpu"],
    "separate_async": ["+stack=cpu_separate", f"{V1}.separate_async.parameter_sync_step=2"],
}


@pytest.mark.parametrize("mode", PLAIN)
def test_a_plain_verl_run_is_what_it_was(settings, verl_forks, tmp_path, mode):
    """verl's own program and trainers, with the plug-in installed; of it only the CPU's platform and weight channel.

    In the first each process imports for itself, as a user's do.
    """
    ours = ("trainer.rollout_poll_interval", "trainer.exp_seed", "stack=cpu", "reward.custom")
    plain = [argument for argument in settings if not argument.startswith(ours)]
    reward = tmp_path / "reward.py"
    reward.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n")
    arguments = ["verl.trainer.main_ppo", "--config-dir", str(ROOT / "exgrpo" / "config"), *PLAIN[mode], *plain]
    arguments += ["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.strategy=fsdp2", "critic.strategy=fsdp2"]
    arguments += ["actor_rollout_ref.ref.strategy=fsdp2", "actor_rollout_ref.rollout.name=vllm"]
    arguments += [
        "actor_rollout_ref.rollout.load_format=auto",
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
    ]
    arguments += [f"reward.custom_reward_function.path={reward}", f"{V1}.trainer_mode={mode}"]
    arguments += [verl_forks] if mode != "sync" else []
    steps = Run(tmp_path, arguments, "plain").wait()
    assert sorted(steps) == [1, 2]
    assert steps[1]["critic/score/mean"] == 1
    assert not [key for key in steps[2] if "experience" in key or "replayed" in key or "skipped" in key]
