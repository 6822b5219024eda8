"""The real trainer on the CPU, end to end: what it replays, how it survives SIGKILL, and what it leaves alone."""

import filecmp
import re
import shutil

import pandas as pd
import pytest
from conftest import ROOT, Run

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.experience_pool import ExperiencePool
from exgrpo.experience.question_id import fingerprint, question_id, tokenizer_fingerprint
from exgrpo.experience.trajectory import Trajectory
from exgrpo.preflight.train_files import read_question_ids
from exgrpo.saved.pool_folder import PoolFolder

ALWAYS = ["experience/fresh_score", "experience/replayed_groups", "experience/seconds", "actor/replayed_ess"]


def test_killed_and_resumed(settings, tmp_path):
    """One run to step 5, killed; the same command again, to step 8, from the checkpoint of step 4."""
    arguments = ["exgrpo.main_mix_ppo", *settings, "trainer.save_freq=2", "trainer.total_training_steps=8"]
    first = Run(tmp_path, arguments, "first")
    first.kill_after(5)
    steps = first.metrics()
    saved = tmp_path / "checkpoints" / "global_step_4" / "experience"
    copy = shutil.copytree(saved, tmp_path / "copy")

    second = Run(tmp_path, [*arguments, "trainer.save_freq=1"], "second")
    resumed = second.wait()

    # it went on from step 4, with that step's pool, untouched by the resume
    assert sorted(resumed) == [5, 6, 7, 8]
    names = [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()]
    assert filecmp.cmpfiles(copy, saved, names, shallow=False)[0] == names
    # the step that was lost is drawn again alike: the same questions in the same places, the same trajectories replayed
    (prompts, responses), (prompts_again, responses_again) = first.drawn(5), second.drawn(5)
    assert prompts == prompts_again and len(prompts) == 8
    replayed = [key for key in responses if key.endswith("_3_0") and is_stored(copy, prompts, key, responses[key])]
    assert len(replayed) >= 2
    assert {key: responses[key] for key in replayed} == {key: responses_again[key] for key in replayed}

    check_steps(steps | resumed)
    check_pool(tmp_path, resumed[8])
    # verl keeps two checkpoints a process; the pools of those it deleted went with them, and no other
    for kept in ("actor", "experience"):
        left = sorted(int(path.parent.name.split("_")[-1]) for path in tmp_path.glob(f"checkpoints/*/{kept}"))
        assert left == [2, 4, 7, 8], kept


def is_stored(saved, prompts, key, response):
    """Whether a group's last row is a success its question has in the pool, word for word: it was replayed."""
    table = read_pool(saved)
    tokens = table[table["question"] == question_id(prompts[key.split("_")[0]])]["tokens"]
    return response in load_tokenizer().batch_decode([list(t) for t in tokens], skip_special_tokens=True)


def read_pool(folder):
    """By the line of docs/checkpoints.md."""
    return pd.read_parquet(f"{folder}/trajectories").merge(pd.read_parquet(f"{folder}/live.parquet"))


def load_tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(ROOT / "exp_scripts" / "quickstart" / "base_model")


def check_steps(steps):
    """Batches stay whole, half of the questions are replayed once mixing has begun, and the loss sees them."""
    assert sorted(steps) == list(range(1, 9))
    for metrics in steps.values():
        assert all(key in metrics for key in ALWAYS)
    mixed = [metrics for metrics in steps.values() if metrics["experience/mixing"]]
    assert len(mixed) >= 4
    assert all(metrics["experience/replayed_groups"] == 4 for metrics in mixed)
    assert all(metrics["actor/replayed_tokens_share"] > 0 for metrics in mixed)
    assert all(0 < metrics["actor/replayed_ess"] <= 1 + 1e-6 for metrics in mixed)
    assert all(metrics["experience/chosen_score"] <= metrics["experience/passed_over_score"] for metrics in mixed)
    assert all(metrics["training/rollout_probs_diff_max"] < 1e-3 for metrics in steps.values())  # of fresh rows alone
    assert all(metrics["critic/score/mean"] >= metrics["experience/fresh_score"] for metrics in mixed)


def check_pool(folder, metrics):
    """What was saved is what the metrics say, readable by pandas, and holds nothing that was not sampled."""
    saved = folder / "checkpoints" / "global_step_8" / "experience"
    table = read_pool(saved)
    assert len(table) == metrics["experience/pool_trajectories"] > 0
    assert table["question"].nunique() == metrics["experience/pool_questions"]
    assert (table["tokens"].map(len) == table["log_probs"].map(len)).all()
    assert table["step"].between(1, 8).all()
    texts = load_tokenizer().batch_decode([list(tokens) for tokens in table["tokens"]])
    assert all(text.endswith("<|im_end|>") for text in texts)  # the end of the answer is a sampled token like any other


def test_without_replay_it_is_grpo_through_the_same_program(settings, tmp_path):
    arguments = ["exgrpo.main_mix_ppo", *settings, "trainer.experience=False", "trainer.total_training_steps=2"]
    arguments += ["actor_rollout_ref.actor.use_kl_loss=True", "trainer.val_before_train=True", "trainer.save_freq=-1"]
    steps = Run(tmp_path, arguments, "on_policy").wait()
    assert sorted(steps) == [0, 1, 2]
    assert not [key for key in steps[2] if key.startswith("experience/")]
    assert "actor/pg_clipfrac" in steps[2] and "actor/kl_loss" in steps[2]  # verl's own loss, with its reference model


def teacher(questions, folder):
    """A pool of right answers to the training questions, by an author whose log-probs nobody knows."""
    files, tokenizer = [str(questions / "train.parquet")], load_tokenizer()
    pool = ExperiencePool(ExperienceConfig(rollout_n=4))
    for prompt, answer in pd.read_parquet(files[0])[["prompt", "reward_model"]].itertuples(index=False):
        tokens = tokenizer.encode(f"\\boxed{{{answer['ground_truth']}}}<|im_end|>")
        pool.file(question_id(prompt[-1]["content"]), 2, Trajectory.without_log_probs(tokens, step=0))
    identity = {"data_fingerprint": fingerprint(read_question_ids(files, "prompt"))}
    PoolFolder().save(pool, folder, 0, identity | {"tokenizer": tokenizer_fingerprint(tokenizer)})
    return folder


def test_a_run_starts_with_an_imported_pool_and_updates_above_the_bound_are_skipped(settings, questions, tmp_path):
    arguments = ["exgrpo.main_mix_ppo", *settings, "trainer.total_training_steps=2", "trainer.save_freq=-1"]
    arguments += ["actor_rollout_ref.actor.optim.skip_grad_bound=1e-9", "trainer.experience_start_sratio=0"]
    arguments += ["trainer.exp_metric=random", "actor_rollout_ref.actor.entropy_coeff=0.001"]
    arguments += [f"trainer.experience_import={teacher(questions, tmp_path / 'teacher')}"]
    steps = Run(tmp_path, arguments, "skip").wait()
    assert steps[1]["experience/replayed_groups"] == 4 and steps[1]["experience/replay_age"] == 1
    assert steps[1]["actor/skipped_update"] == steps[2]["actor/skipped_update"] == 1
    # nothing was learned: what is weighed against this step's policy, or was written by it, has ratios of 1
    assert steps[2]["actor/replayed_ratio_max"] == pytest.approx(1, abs=1e-4)


def test_rules_of_a_file_decide_in_a_run_by_keys_alone(settings, tmp_path):
    """The examples of docs/extending.md, and a difficulty that shows: every question is filed under one success."""
    page = (ROOT / "docs" / "extending.md").read_text()
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    (tmp_path / "my_rules.py").write_text(f"{examples}\ndef always_one(group, rollout_n):\n    return 1\n")
    rule = "my_rules.py"  # of the folder the command is given in; the trainer has another
    arguments = ["exgrpo.main_mix_ppo", *settings, "trainer.total_training_steps=3", "trainer.save_freq=-1"]
    arguments += ["trainer.experience_start_sratio=0", f"trainer.exp_bucket_manager={rule}:hardest_first"]
    arguments += [f"trainer.exp_metric={rule}:least_changed", f"trainer.exp_difficulty={rule}:always_one"]
    arguments += [f"actor_rollout_ref.actor.policy_loss.off_policy_reshape={rule}:truncated"]
    steps = Run(tmp_path, arguments, "rules").wait()
    last = steps[3]
    assert last["experience/bucket_1"] == last["experience/pool_questions"] > 0 and last["experience/replayed_groups"]
    assert (
        last["experience/chosen_score"] <= last["experience/passed_over_score"]
        or not last["experience/candidates_scored"]
    )
    # min(w, 1) at ratios near 1; the default shaping has 0.91 there
    assert 0.95 < last["actor/replayed_shaped_mean"] <= 1 and last["actor/replayed_ratio_mean"] > 0.95


V1 = "trainer.v1"
PLAIN = {
    "sync": ["+stack=cpu"],
    "colocate_async": ["+stack=cpu"],
    "separate_async": ["+stack=cpu_separate", f"{V1}.separate_async.parameter_sync_step=2"],
}


@pytest.mark.parametrize("mode", PLAIN)
def test_a_plain_verl_run_is_what_it_was(settings, tmp_path, mode):
    """verl's own program and trainers, with the plug-in installed; of it only the CPU's platform and weight channel."""
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
    steps = Run(tmp_path, arguments, "plain").wait()
    assert sorted(steps) == [1, 2]
    assert steps[1]["critic/score/mean"] == 1
    assert not [key for key in steps[2] if "experience" in key or "replayed" in key or "skipped" in key]
