"""Settings that change what is rolled out, learned or replayed, killed and resumed: each has unit
tests elsewhere.
"""

import re
import shutil

import numpy as np
import pytest
import tool_base
import torch
from test_exact_resume import EXACT, check_untouched, is_stored, pool_of, timeless
from training_run import KL_AND_ENTROPY, ROOT, K, Run
from transformers import AutoTokenizer

from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.question_id import question_id
from exgrpo.saved.pool_files import read_groups, read_manifest
from exgrpo.saved.pool_folder import PoolFolder

ACTOR = "actor_rollout_ref.actor"
REWARD = """import re


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **settings):
    boxed = re.findall(r"boxed{(\\d+)}", solution_str)
    return 9.0 if boxed and boxed[-1] == ground_truth else -2.0
"""


def test_lora_rloo_gspo_correction_filter_and_rewards_of_any_range_are_killed_and_resumed(
    make_settings, forks, tmp_path
):
    (tmp_path / "reward.py").write_text(REWARD)
    algorithm = "algorithm"
    arguments = [
        "exgrpo.main_mix_ppo",
        *make_settings(tmp_path),
        forks,
        "trainer.experience_start_sratio=0",
    ]
    arguments += [
        "trainer.total_training_steps=5",
        "trainer.save_freq=2",
        "trainer.max_actor_ckpt_to_keep=null",
    ]
    arguments += ["actor_rollout_ref.model.lora_rank=8", f"{ACTOR}.optim.lr=1e-3", *KL_AND_ENTROPY]
    arguments += [f"{ACTOR}.policy_loss.loss_mode=gspo", "trainer.exp_difficulty=reward_std"]
    arguments += ["trainer.exp_success_threshold=5"]
    arguments += [
        f"{algorithm}.adv_estimator=rloo",
        f"{algorithm}.rollout_correction.rollout_is=token",
    ]
    arguments += [
        f"{algorithm}.filter_groups.enable=True",
        f"reward.custom_reward_function.path={tmp_path}/reward.py",
    ]
    first = Run(tmp_path, arguments, "first")
    first.kill_after(3)
    second = Run(tmp_path, arguments, "second")
    steps = second.wait()
    assert sorted(steps) == [3, 4, 5]
    assert (
        max(metrics["experience/replayed_groups"] for metrics in steps.values()) > 0
    )  # a refill may displace some
    for step, metrics in steps.items():
        assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-3)
        assert metrics["actor/kl_loss"] > 0 and "actor/pg_clipfrac_lower" in metrics
        scores = second.scores(step)
        assert set(scores.values()) == {9.0, -2.0}
        for uid, sessions in second.sessions(
            step
        ).items():  # no group is left whose rewards are all the same
            assert len({scores[f"{uid}_{session}_0"] for session in sessions}) == 2
    assert (
        sum(metrics.get("training/filter_groups/evicted_samples", 0) for metrics in steps.values())
        > 0
    )


@pytest.fixture(scope="module")
def with_a_tool(make_settings, forks, tmp_path_factory):
    """A run with a tool, by rules of a file, that was killed after step 5, and the one that goes on
    from step 3.
    """
    folder = tmp_path_factory.mktemp("tool")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two would wait for each other beside another training
    tool_base.make(
        folder / "base", steps=250
    )  # it calls the tool, and repeats most of what that says
    torch.set_num_threads(threads)
    rollout = "actor_rollout_ref.rollout"
    arguments = [
        "exgrpo.main_mix_ppo",
        *make_settings(folder),
        f"actor_rollout_ref.model.path={folder}/base",
    ]
    arguments += [
        f"{rollout}.multi_turn.enable=True",
        f"{rollout}.agent.default_agent_loop=tool_agent",
    ]
    arguments += [f"{rollout}.multi_turn.function_tool_path={folder}/base/tool.py", *rules(folder)]
    arguments += [
        f"{rollout}.multi_turn.max_assistant_turns=2"
    ]  # or some ask the tool again after its answer
    arguments += [
        "trainer.total_training_steps=6",
        "trainer.save_freq=3",
        "trainer.max_actor_ckpt_to_keep=null",
    ]
    arguments += ["trainer.experience_start_sratio=0", *KL_AND_ENTROPY, forks]
    first = Run(folder, arguments, "first")
    first.kill_after(5)
    shutil.copytree(pool_of(folder, 3), folder / "copy")
    second = Run(folder, arguments, "second")
    second.wait()
    return first, second


def rules(folder):
    """The examples of docs/extending.md, and a difficulty that shows: every question is filed under
    one success.
    """
    page = (ROOT / "docs" / "extending.md").read_text()
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    (folder / "my_rules.py").write_text(
        f"{examples}\ndef always_one(groups, rollout_n):\n    return [1 for _ in groups]\n"
        "import exgrpo.console\nexgrpo.console.AFTER_S = 0.0  # every phase after the "
        "reading of this says so\n"
    )
    rule = "my_rules.py"  # of the folder the command is given in; the trainer has another
    keys = [
        f"trainer.exp_bucket_manager={rule}:hardest_first",
        f"trainer.exp_metric={rule}:least_changed",
    ]
    keys += [f"trainer.exp_difficulty={rule}:always_one"]
    return [*keys, f"{ACTOR}.policy_loss.off_policy_reshape={rule}:truncated"]


def test_rules_of_a_file_decide_in_a_run_by_keys_alone(with_a_tool):
    last = with_a_tool[-1].metrics()[6]
    assert (
        last["experience/bucket_1"] == last["experience/pool_questions"] > 0
        and last["experience/replayed_groups"]
    )
    assert (
        last["experience/chosen_score"] <= last["experience/passed_over_score"]
        or not last["experience/candidates_scored"]
    )
    # min(w, 1) at ratios near 1; the default shaping has 0.91 there
    assert (
        0.95 < last["actor/replayed_shaped_mean"] <= 1 and last["actor/replayed_ratio_mean"] > 0.95
    )


def test_the_phases_of_a_start_say_how_long_they_took(with_a_tool):
    """The engine's end is printed last of the load, the first rollouts once, of six steps."""
    said = with_a_tool[0].log.read_text()
    took = re.findall(
        r"exgrpo: (loading the model and starting the engine|generating the first rollouts) "
        r"took \d+ s",
        said,
    )
    assert took == ["loading the model and starting the engine", "generating the first rollouts"]
    assert "exgrpo: generating the first rollouts ..." in said


def test_turns_with_a_tool_are_replayed_with_their_masks(with_a_tool):
    """The first replayed rows are read from the pool as it was saved before: calls, what the tool
    said, answers.
    """
    first, second = with_a_tool
    steps = second.metrics()
    assert sorted(steps) == [4, 5, 6]
    assert all(metrics["experience/replayed_groups"] > 0 for metrics in steps.values())
    assert all(
        metrics["actor/kl_loss"] > 0 and metrics["actor/entropy_loss"] > 0
        for metrics in steps.values()
    )
    assert (
        max(metrics["training/num_turns/max"] for metrics in steps.values()) == 4
    )  # question, call, answer, answer
    assert all(
        metrics["training/rollout_probs_diff_max"] < 1e-3 for metrics in steps.values()
    )  # of fresh rows alone
    check_untouched(second.folder / "copy", pool_of(second.folder, 3))
    pool = saved_pool(pool_of(second.folder, 3))  # what step 4 draws from
    tokenizer = AutoTokenizer.from_pretrained(second.folder / "base")
    masks = {}  # question, text -> loss mask
    for question in pool:
        for each in pool.candidates(question):
            masks[question, tokenizer.decode(each.tokens, skip_special_tokens=True)] = (
                each.loss_mask
            )
    prompts, responses = second.drawn(4)
    completed = {
        uid: (question_id(prompts[uid].strip()), responses[f"{uid}_{K - 1}_0"]) for uid in prompts
    }
    replayed = [masks[row] for row in completed.values() if row in masks]
    assert len(replayed) == steps[4]["experience/replayed_groups"]
    # the step that was lost is drawn again alike, though what is sampled is not: the same
    # questions, the same replay
    lost_prompts, lost = first.drawn(4)
    assert lost_prompts == prompts
    assert all(lost[f"{uid}_{K - 1}_0"] == row[1] for uid, row in completed.items() if row in masks)
    with_calls = [mask for mask in masks.values() if mask is not None]
    assert with_calls and any(mask is not None for mask in replayed)
    for mask in with_calls:  # the call, its end; what the tool said; the answer
        assert mask[0] and mask[-1] and np.count_nonzero(np.diff(mask)) == 2


def test_half_of_a_step_is_whole_past_groups_and_a_killed_run_goes_on_to_the_bit(
    make_settings, forks, tmp_path
):
    """What joins the first step after the checkpoint is what that holds: whole groups, and
    successes that rescue one.

    At this temperature and with so few questions, groups fail of which the pool has a success.
    """
    arguments = [
        "exgrpo.main_mix_ppo",
        *make_settings(tmp_path),
        *EXACT,
        forks,
        "data.train_max_samples=14",
    ]
    arguments += [
        "actor_rollout_ref.rollout.temperature=1.3",
        "actor_rollout_ref.model.use_remove_padding=True",
    ]
    arguments += ["actor_rollout_ref.model.use_fused_kernels=True"]
    arguments += ["trainer.exp_unit=group", "trainer.exp_rescue=True", "trainer.exp_max_drift=9"]
    arguments += [
        "trainer.experience_start_sratio=0",
        "actor_rollout_ref.actor.policy_loss.off_policy_loss=topr",
    ]
    arguments += [
        "trainer.total_training_steps=8",
        "trainer.save_freq=4",
        "trainer.max_actor_ckpt_to_keep=null",
    ]
    first = Run(tmp_path, arguments, "first")
    first.kill_after(7)
    second = Run(tmp_path, arguments, "second")
    resumed, before = second.wait(), first.metrics()
    assert sorted(resumed) == [5, 6, 7, 8]
    for step in (5, 6, 7):
        assert timeless(resumed[step]) == timeless(before[step]), step
    tokenizer = AutoTokenizer.from_pretrained(
        tmp_path / "checkpoints" / "global_step_4" / "actor" / "huggingface"
    )
    held = {}  # question, responses -> rewards
    for group in read_groups(pool_of(tmp_path, 4)):
        words = [tokenizer.decode(each.tokens, skip_special_tokens=True) for each in group.rollouts]
        held[tokenizer.decode(group.prompt, skip_special_tokens=True), *words] = [
            one.reward for one in group.rollouts
        ]
    prompts, responses = second.drawn(5)
    scores = second.scores(5)
    past = [uid for uid in prompts if "s" in uid]
    for uid in past:
        keys = [f"{uid}_{session}_0" for session in range(K)]
        assert held[prompts[uid], *(responses[key] for key in keys)] == [
            scores[key] for key in keys
        ]
    assert len(past) == resumed[5]["experience/stored_groups"] == 4 and len(responses) == 8 * K
    last = [f"{uid}_{K - 1}_0" for uid in prompts if uid not in past]
    rescued = [key for key in last if is_stored(pool_of(tmp_path, 4), prompts, key, responses[key])]
    alone = [
        key
        for key in rescued
        if sum(scores[f"{key.split('_')[0]}_{session}_0"] for session in range(K)) == 1
    ]
    assert len(alone) >= resumed[5]["experience/replayed_groups"]
    assert sum(metrics["experience/replayed_groups"] for metrics in resumed.values()) > 0
    for metrics in resumed.values():
        assert (
            metrics["experience/stored_groups"] == 4
            and metrics["actor/replayed_tokens_share"] > 0.3
        )
        assert (
            metrics["experience/generated_tokens"] < 0.7 * 8 * K * metrics["response_length/mean"]
        )
        assert metrics["training/rollout_probs_diff_max"] < 1e-4  # of verl's fused kernels


def test_past_groups_take_the_place_of_dead_ones_and_a_killed_run_goes_on_to_the_bit(
    make_settings, forks, tmp_path
):
    """All questions of a step are asked; each step has as many rows as without replay."""
    arguments = [
        "exgrpo.main_mix_ppo",
        *make_settings(tmp_path),
        *EXACT,
        forks,
        "data.train_max_samples=14",
    ]
    arguments += [
        "trainer.exp_unit=group",
        "trainer.exp_place=dead",
        "trainer.experience_start_sratio=0",
    ]
    arguments += [
        "actor_rollout_ref.actor.policy_loss.off_policy_loss=topr",
        "trainer.exp_retirement=never",
    ]
    arguments += [
        "trainer.total_training_steps=6",
        "trainer.save_freq=3",
        "trainer.max_actor_ckpt_to_keep=null",
    ]
    first = Run(tmp_path, arguments, "first")
    first.kill_after(5)
    second = Run(tmp_path, arguments, "second")
    resumed, before = second.wait(), first.metrics()
    for step in (4, 5):
        assert timeless(resumed[step]) == timeless(before[step]), step
    replaced = 0
    for step, metrics in {**before, **resumed}.items():
        prompts, responses = (second if step > 3 else first).drawn(step)
        past = [uid for uid in prompts if "s" in uid]
        assert len(past) == metrics["experience/stored_groups"] and len(responses) == 8 * K
        rows = (second if step > 3 else first).scores(step)
        rewards = [
            {rows[f"{uid}_{session}_0"] for session in range(K)}
            for uid in prompts
            if uid not in past
        ]
        dead = sum(len(each) == 1 for each in rewards)
        assert all(len({rows[f"{uid}_{session}_0"] for session in range(K)}) > 1 for uid in past)
        assert step == 1 or not dead or len(past) == 4, "half of the groups at most"
        replaced += len(past)
    assert replaced > 0


def saved_pool(folder):
    manifest = read_manifest(folder)
    return PoolFolder().load(
        folder, ExperienceConfig(rollout_n=K), manifest["step"], manifest["identity"]
    )
