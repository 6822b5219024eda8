"""Rehearsal and prefixes in a training of the quickstart's task: killed, resumed, equal to the
bit.
"""

import itertools

from test_exact_resume import EXACT, timeless
from training_run import K, Run

from exgrpo.experience.config import ExperienceConfig
from exgrpo.saved.pool_files import read_groups, read_manifest
from exgrpo.saved.pool_folder import PoolFolder

BATCH = 8


def killed_and_resumed(folder, arguments):
    """Six steps, killed in the sixth, and again from the third; metrics of both, and the runs."""
    arguments = [
        "exgrpo.main_mix_ppo",
        *arguments,
        *EXACT,
        "data.train_max_samples=14",
        "trainer.experience_start_sratio=0",
        "trainer.exp_retirement=never",
        "trainer.total_training_steps=6",
        "trainer.save_freq=3",
        "trainer.max_actor_ckpt_to_keep=null",
    ]
    first = Run(folder, arguments, "first")
    first.kill_after(5)
    second = Run(folder, arguments, "second")
    resumed, before = second.wait(), first.metrics()
    for step in (4, 5):
        assert timeless(resumed[step]) == timeless(before[step]), step
    return {**before, **resumed}, lambda step: second if step > 3 else first


def test_stored_successes_are_rehearsed_beside_the_groups(make_settings, forks, tmp_path):
    keys = ["trainer.exp_place=beside", "trainer.experience_ratio=0.25", "trainer.exp_seed=1"]
    keys += ["actor_rollout_ref.actor.policy_loss.off_policy_loss=likelihood"]
    keys += ["trainer.experience_max_per_question=1", "trainer.exp_eviction=newest"]
    every, run_of = killed_and_resumed(tmp_path, [*make_settings(tmp_path), forks, *keys])
    rehearsed = 0
    for step, metrics in every.items():
        prompts, responses = run_of(step).drawn(step)
        beside = [uid for uid in prompts if "s" in uid.split("q")[-1]]
        rows = [key for key in responses if key.split("_")[0] in beside]
        assert len(rows) == len(beside) * K == metrics["experience/replayed_groups"]
        assert (len(responses) == BATCH * K and step > 1) or not rows
        scores = run_of(step).scores(step)
        assert all(scores[key] == 1 for key in rows)
        rehearsed += len(rows)
    assert rehearsed > K
    folder = tmp_path / "checkpoints" / "global_step_6" / "experience"
    config, manifest = ExperienceConfig(rollout_n=K), read_manifest(folder)
    pool = PoolFolder().load(folder, config, 6, manifest["identity"])
    assert all(len(pool.candidates(question)) == 1 for question in pool)


def test_rollouts_go_on_from_where_a_stored_one_was_cut(make_settings, forks, tmp_path):
    keys = ["trainer.exp_unit=prefix"]
    every, run_of = killed_and_resumed(tmp_path, [*make_settings(tmp_path), forks, *keys])
    continued = 0
    for step, metrics in every.items():
        _, responses = run_of(step).drawn(step)
        assert len(responses) == BATCH * K and metrics["experience/prefix_groups"] <= BATCH / 2
        texts = {}
        for key, text in responses.items():
            texts.setdefault(key.split("_")[0], []).append(text)
        common = [shared(each) for each in texts.values()]
        count = int(metrics["experience/prefix_groups"])
        assert sum(length > 0 for length in common) >= count
        if count:
            whole = BATCH * K * metrics["response_length/mean"]
            assert metrics["experience/generated_tokens"] < whole
            assert 0.1 <= metrics["experience/prefix_share"] <= 0.9
        continued += count
    assert continued > 0
    folder = tmp_path / "checkpoints" / "global_step_6" / "experience"
    assert read_manifest(folder)["replay_state"]["cuts"]
    assert all(one.loss_mask is None or one.loss_mask.all() for one in rollouts(folder))


def shared(texts):
    """With how many equal characters they begin."""
    together = zip(*texts, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda each: len(set(each)) == 1, together))


def rollouts(folder):
    return [one for group in read_groups(folder) for one in group.rollouts]
