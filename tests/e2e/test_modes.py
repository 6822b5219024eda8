"""verl's other modes with replay, by the real trainer: what was in flight when a run was killed is trained on once."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import tool_base
import torch
from conftest import Run
from test_exact_resume import EXACT, timeless
from transformers import AutoTokenizer

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.question_id import question_id
from exgrpo.saved.pool_files import read_groups, read_manifest
from exgrpo.saved.pool_folder import PoolFolder

STEPS, SAVED, KILLED_AFTER = 12, 4, 6
K = 4


def prompts_of(run, step):
    """uid -> sessions of its rows, in what a step trained on."""
    sessions = {}
    for key in run.drawn(step)[1]:
        uid, session, _ = key.rsplit("_", 2)
        sessions.setdefault(uid, []).append(int(session))
    return sessions


ACTOR = "actor_rollout_ref.actor"
KL_AND_ENTROPY = [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.entropy_coeff=0.001"]
# mode -> its overrides
MODES = {
    "colocate_async": [],
    "separate_async": ["trainer.v1.separate_async.parameter_sync_step=2"],
}


@pytest.fixture(scope="module", params=MODES)
def killed_and_resumed(request, make_settings, tmp_path_factory):
    """The run until the kill, the checkpoint's state, and the run that goes on from it."""
    folder = tmp_path_factory.mktemp(request.param)
    stack = {"stack=cpu": "stack=cpu_separate"} if request.param == "separate_async" else {}
    settings = [stack.get(setting, setting) for setting in make_settings(folder)]
    arguments = ["exgrpo.main_mix_ppo", *settings, f"trainer.v1.trainer_mode={request.param}", *MODES[request.param]]
    arguments += [f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={SAVED}"]
    arguments += ["trainer.max_actor_ckpt_to_keep=null", "trainer.experience_start_sratio=0", *KL_AND_ENTROPY]
    first = Run(folder, arguments, "first")
    first.kill_after(KILLED_AFTER)
    manifest = folder / "checkpoints" / f"global_step_{SAVED}" / "experience" / "manifest.json"
    state = json.loads(manifest.read_text())["replay_state"]
    second = Run(folder, arguments, "second")
    second.wait()
    return first, state, second


def test_rollouts_are_stale_and_groups_are_replayed(killed_and_resumed):
    _, _, second = killed_and_resumed
    steps = second.metrics()
    assert sorted(steps) == list(range(SAVED + 1, STEPS + 1))
    assert max(metrics["experience/fresh_staleness_max"] for metrics in steps.values()) > 0
    assert all(metrics["experience/replayed_groups"] > 0 for metrics in steps.values())
    for metrics in steps.values():
        assert metrics["actor/replayed_tokens_share"] > 0
        assert metrics["actor/kl_loss"] > 0 and metrics["actor/entropy_loss"] > 0


def test_what_was_in_flight_at_the_kill_is_trained_on_exactly_once(killed_and_resumed):
    first, state, second = killed_and_resumed
    in_flight = {uid: is_replayed for uid, (_, is_replayed, _) in state["prompts"].items()}
    assert len(in_flight) == 8 and 0 < sum(in_flight.values()) < 8  # one warm-up batch, half of it replayed
    before = [prompts_of(first, step) for step in range(1, SAVED + 1)]
    after = [prompts_of(second, step) for step in range(SAVED + 1, STEPS + 1)]
    times = Counter(uid for step in before + after for uid in step)
    assert set(times.values()) == {1} and in_flight.keys() <= times.keys()
    trained = {uid: sessions for step in after for uid, sessions in step.items()}
    assert in_flight.keys() <= trained.keys()
    for uid, is_replayed in in_flight.items():
        assert sorted(trained[uid]) == list(range(K)), (uid, is_replayed)


def test_what_is_replayed_is_recorded_once_for_each_group_also_if_it_was_drawn_before_the_kill(killed_and_resumed):
    _, state, second = killed_and_resumed
    log = pd.read_parquet(second.folder / f"checkpoints/global_step_{STEPS}/experience/replayed.parquet")
    for step, metrics in second.metrics().items():
        of_step = log[log["step"] == step]
        assert len(of_step) == metrics["experience/replayed_groups"]  # of all updates of the step
        trained = prompts_of(second, step)
        for uid, (question, is_replayed, _) in state["prompts"].items():
            if uid in trained:
                assert list(of_step["question"]).count(question) == is_replayed, uid


def test_the_questions_go_on_where_they_were(killed_and_resumed):
    """One epoch has more questions than the runs draw fresh: none is drawn fresh twice, before or after the kill."""
    _, state, second = killed_and_resumed
    replayed = {question for question, is_replayed, _ in state["prompts"].values() if is_replayed}
    fresh = [question for question, is_replayed, _ in state["prompts"].values() if not is_replayed]
    assert len(set(fresh)) == len(fresh) and not replayed & set(fresh)
    last = json.loads((second.folder / f"checkpoints/global_step_{STEPS}/experience/manifest.json").read_text())
    assert len(last["replay_state"]["prompts"]) == 8


# -- other settings, together: each has its own tests with verl's functions elsewhere ----------------------------------

REWARD = """import re


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **settings):
    boxed = re.findall(r"boxed{(\\d+)}", solution_str)
    return 0.9 if boxed and boxed[-1] == ground_truth else 0.2
"""


def test_lora_rloo_gspo_correction_filter_and_partial_rewards_are_killed_and_resumed(make_settings, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    algorithm = "algorithm"
    arguments = ["exgrpo.main_mix_ppo", *make_settings(tmp_path), "trainer.experience_start_sratio=0"]
    arguments += ["trainer.total_training_steps=5", "trainer.save_freq=2", "trainer.max_actor_ckpt_to_keep=null"]
    arguments += ["actor_rollout_ref.model.lora_rank=8", f"{ACTOR}.optim.lr=1e-3", *KL_AND_ENTROPY]
    arguments += [f"{ACTOR}.policy_loss.loss_mode=gspo", "trainer.exp_difficulty=mean_reward"]
    arguments += [f"{algorithm}.adv_estimator=rloo", f"{algorithm}.rollout_correction.rollout_is=token"]
    arguments += [f"{algorithm}.filter_groups.enable=True", f"reward.custom_reward_function.path={tmp_path}/reward.py"]
    first = Run(tmp_path, arguments, "first")
    first.kill_after(3)
    second = Run(tmp_path, arguments, "second")
    steps = second.wait()
    assert sorted(steps) == [3, 4, 5]
    assert max(metrics["experience/replayed_groups"] for metrics in steps.values()) > 0  # a refill may displace some
    for step, metrics in steps.items():
        assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-3)
        assert metrics["actor/kl_loss"] > 0 and "actor/pg_clipfrac_lower" in metrics
        scores = second.scores(step)
        assert set(scores.values()) == {0.9, 0.2}
        for uid, sessions in prompts_of(second, step).items():  # no group is left whose rewards are all the same
            assert len({scores[f"{uid}_{session}_0"] for session in sessions}) == 2
    assert sum(metrics.get("training/filter_groups/evicted_samples", 0) for metrics in steps.values()) > 0


def test_turns_with_a_tool_are_replayed_with_their_masks(make_settings, tmp_path):
    """The first replayed rows are read from the pool as it was saved before: calls, what the tool said, answers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two would wait for each other beside another training
    tool_base.make(tmp_path / "base")
    torch.set_num_threads(threads)
    rollout = "actor_rollout_ref.rollout"
    arguments = ["exgrpo.main_mix_ppo", *make_settings(tmp_path), f"actor_rollout_ref.model.path={tmp_path}/base"]
    arguments += [f"{rollout}.multi_turn.enable=True", f"{rollout}.agent.default_agent_loop=tool_agent"]
    arguments += [f"{rollout}.multi_turn.function_tool_path={tmp_path}/base/tool.py"]
    arguments += ["trainer.total_training_steps=6", "trainer.save_freq=3", "trainer.max_actor_ckpt_to_keep=null"]
    arguments += ["trainer.experience_start_sratio=0", *KL_AND_ENTROPY]
    first = Run(tmp_path, arguments, "first")
    first.kill_after(4)
    second = Run(tmp_path, arguments, "second")
    steps = second.wait()
    assert sorted(steps) == [4, 5, 6]
    assert all(metrics["experience/replayed_groups"] > 0 for metrics in steps.values())
    assert all(metrics["actor/kl_loss"] > 0 and metrics["actor/entropy_loss"] > 0 for metrics in steps.values())
    assert max(metrics["training/num_turns/max"] for metrics in steps.values()) == 4  # question, call, answer, answer
    pool = saved_pool(tmp_path / "checkpoints" / "global_step_3" / "experience")  # what step 4 draws from
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    masks = {}  # question, text -> loss mask
    for question in pool:
        for each in pool.candidates(question):
            masks[question, tokenizer.decode(each.tokens, skip_special_tokens=True)] = each.loss_mask
    prompts, responses = second.drawn(4)
    completed = {question_id(prompts[uid].strip()): responses[f"{uid}_{K - 1}_0"] for uid in prompts}
    replayed = [masks[row] for row in completed.items() if row in masks]
    assert len(replayed) == steps[4]["experience/replayed_groups"]
    with_calls = [mask for mask in masks.values() if mask is not None]
    assert with_calls and any(mask is not None for mask in replayed)
    for mask in with_calls:  # the call, its end; what the tool said; the answer
        assert mask[0] and mask[-1] and np.count_nonzero(np.diff(mask)) == 2


def test_half_of_a_step_is_whole_past_groups_and_a_killed_run_goes_on_to_the_bit(make_settings, tmp_path):
    """The past groups of the first step after the checkpoint are those that it holds: prompt, responses, rewards."""
    arguments = ["exgrpo.main_mix_ppo", *make_settings(tmp_path), *EXACT, "data.train_max_samples=20"]
    arguments += ["trainer.exp_unit=group", "trainer.exp_rescue=True", "trainer.exp_max_drift=9"]
    arguments += ["trainer.experience_start_sratio=0", "actor_rollout_ref.actor.policy_loss.off_policy_loss=topr"]
    arguments += ["trainer.total_training_steps=8", "trainer.save_freq=4", "trainer.max_actor_ckpt_to_keep=null"]
    first = Run(tmp_path, arguments, "first")
    first.kill_after(7)
    second = Run(tmp_path, arguments, "second")
    resumed, before = second.wait(), first.metrics()
    assert sorted(resumed) == [5, 6, 7, 8]
    for step in (5, 6, 7):
        assert timeless(resumed[step]) == timeless(before[step]), step
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoints" / "global_step_4" / "actor" / "huggingface")
    held = {}  # question, responses -> rewards
    for group in read_groups(tmp_path / "checkpoints" / "global_step_4" / "experience"):
        words = [tokenizer.decode(each.tokens, skip_special_tokens=True) for each in group.rollouts]
        held[tokenizer.decode(group.prompt, skip_special_tokens=True), *words] = [one.reward for one in group.rollouts]
    prompts, responses = second.drawn(5)
    scores = second.scores(5)
    past = [uid for uid in prompts if "s" in uid]
    for uid in past:
        keys = [f"{uid}_{session}_0" for session in range(K)]
        assert held[prompts[uid], *(responses[key] for key in keys)] == [scores[key] for key in keys]
    assert len(past) == resumed[5]["experience/stored_groups"] == 4 and len(responses) == 8 * K
    for metrics in resumed.values():
        assert metrics["experience/stored_groups"] == 4 and metrics["actor/replayed_tokens_share"] > 0.3
        assert metrics["experience/generated_tokens"] < 0.7 * 8 * K * metrics["response_length/mean"]


def saved_pool(folder):
    manifest = read_manifest(folder)
    return PoolFolder().load(folder, ExperienceConfig(rollout_n=K), manifest["step"], manifest["identity"])
