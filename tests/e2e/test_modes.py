"""verl's other modes with replay, by the real trainer: what was in flight when a run was killed is
trained on once.
"""

import json
from collections import Counter

import pandas as pd
import pytest
from training_run import KL_AND_ENTROPY, K, Run

STEPS, SAVED, KILLED_AFTER = 8, 4, 6
# mode -> its overrides
MODES = {
    "colocate_async": [],
    "separate_async": ["trainer.v1.separate_async.parameter_sync_step=2"],
}


# past groups, and verl's other ways to overlap: servers that borrow the trainer's GPUs, half a
# batch ahead, no bound
GROUPS = [
    "trainer.exp_unit=group",
    "actor_rollout_ref.actor.policy_loss.off_policy_loss=topr",
    "trainer.v1.separate_async.hybrid_rollout.enable_switch=True",
    "trainer.v1.separate_async.num_warmup_batches=0.5",
    "trainer.v1.sampler.max_off_policy_threshold=null",
]


def kill_and_resume(folder, mode, settings, steps, saved, killed_after, *more):
    """The run until the kill, the checkpoint's state, and the run that goes on from it."""
    stack = {"stack=cpu": "stack=cpu_separate"} if mode == "separate_async" else {}
    settings = [stack.get(setting, setting) for setting in settings]
    arguments = ["exgrpo.main_mix_ppo", *settings, f"trainer.v1.trainer_mode={mode}", *MODES[mode]]
    arguments += [f"trainer.total_training_steps={steps}", f"trainer.save_freq={saved}"]
    arguments += ["trainer.max_actor_ckpt_to_keep=null", "trainer.experience_start_sratio=0", *more]
    first = Run(folder, arguments, "first")
    first.kill_after(killed_after)
    manifest = folder / "checkpoints" / f"global_step_{saved}" / "experience" / "manifest.json"
    state = json.loads(manifest.read_text())["replay_state"]
    second = Run(folder, arguments, "second")
    second.wait()
    return first, state, second


@pytest.fixture(scope="module", params=MODES)
def killed_and_resumed(request, make_settings, forks, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    numbers = STEPS, SAVED, KILLED_AFTER
    return kill_and_resume(
        folder, request.param, make_settings(folder), *numbers, *KL_AND_ENTROPY, forks
    )


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
    assert (
        len(in_flight) == 8 and 0 < sum(in_flight.values()) < 8
    )  # one warm-up batch, half of it replayed
    before = [first.sessions(step) for step in range(1, SAVED + 1)]
    after = [second.sessions(step) for step in range(SAVED + 1, STEPS + 1)]
    times = Counter(uid for step in before + after for uid in step)
    assert set(times.values()) == {1} and in_flight.keys() <= times.keys()
    trained = {uid: sessions for step in after for uid, sessions in step.items()}
    assert in_flight.keys() <= trained.keys()
    for uid, is_replayed in in_flight.items():
        assert sorted(trained[uid]) == list(range(K)), (uid, is_replayed)


def test_what_is_replayed_is_recorded_once_for_each_group_also_if_it_was_drawn_before_the_kill(
    killed_and_resumed,
):
    _, state, second = killed_and_resumed
    log = pd.read_parquet(
        second.folder / f"checkpoints/global_step_{STEPS}/experience/replayed.parquet"
    )
    for step, metrics in second.metrics().items():
        of_step = log[log["step"] == step]
        assert len(of_step) == metrics["experience/replayed_groups"]  # of all updates of the step
        trained = second.sessions(step)
        for uid, (question, is_replayed, _) in state["prompts"].items():
            if uid in trained:
                assert list(of_step["question"]).count(question) == is_replayed, uid


def test_the_questions_go_on_where_they_were(killed_and_resumed):
    """One epoch has more questions than the runs draw fresh: none is drawn fresh twice, before or
    after the kill.
    """
    _, state, second = killed_and_resumed
    replayed = {question for question, is_replayed, _ in state["prompts"].values() if is_replayed}
    fresh = [question for question, is_replayed, _ in state["prompts"].values() if not is_replayed]
    assert len(set(fresh)) == len(fresh) and not replayed & set(fresh)
    last = json.loads(
        (second.folder / f"checkpoints/global_step_{STEPS}/experience/manifest.json").read_text()
    )
    assert len(last["replay_state"]["prompts"]) == 8


def test_past_groups_belong_to_the_step_that_trains_them_also_after_a_kill(
    make_settings, forks, tmp_path
):
    """Half of a step is fresh, half a batch is ahead, and each of both updates has its share of
    past groups.
    """
    first, state, second = kill_and_resume(
        tmp_path, "separate_async", make_settings(tmp_path), 5, 3, 4, *GROUPS, forks
    )
    in_flight = state["prompts"]
    assert len(in_flight) == 4 and not any(is_replayed for _, is_replayed, _ in in_flight.values())
    runs = {1: first, 2: first, 3: first, 4: second, 5: second}
    steps = {step: run.sessions(step) for step, run in runs.items()}
    times = Counter(uid for step in steps.values() for uid in step)
    assert set(times.values()) == {1} and in_flight.keys() <= steps[4].keys() | steps[5].keys()
    assert all(
        sorted(sessions) == list(range(K)) for step in steps.values() for sessions in step.values()
    )
    log = pd.read_parquet(tmp_path / "checkpoints/global_step_5/experience/replayed.parquet")
    for step, run in runs.items():
        metrics, stored = run.metrics()[step], [uid for uid in steps[step] if "s" in uid]
        assert len(steps[step]) == 8 and len(stored) == metrics["experience/stored_groups"] == sum(
            log["step"] == step
        )
        assert (metrics["actor/replayed_tokens_share"] > 0) == bool(stored)
        assert "separate_async/decision/should_switch_to_rollout" in metrics
    assert len(stored) == 4 and metrics["experience/fresh_staleness_max"] > 0


def test_past_groups_take_the_place_of_dead_ones_in_each_update_of_a_step(
    make_settings, forks, tmp_path
):
    """At most one of an update's four groups by this share; the others stay, with or without an
    advantage.
    """
    settings = [
        {"stack=cpu": "stack=cpu_separate"}.get(each, each) for each in make_settings(tmp_path)
    ]
    arguments = [
        "exgrpo.main_mix_ppo",
        *settings,
        "trainer.v1.trainer_mode=separate_async",
        *MODES["separate_async"],
    ]
    arguments += [
        *GROUPS,
        "trainer.exp_place=dead",
        "trainer.experience_ratio=0.25",
        "trainer.experience_start_sratio=0",
    ]
    run = Run(tmp_path, [*arguments, "trainer.total_training_steps=8", forks], "dead")
    steps = run.wait()
    for step, metrics in steps.items():
        sessions = run.sessions(step)
        stored = [uid for uid in sessions if "s" in uid]
        assert len(sessions) == 8 and all(
            sorted(each) == list(range(K)) for each in sessions.values()
        )
        assert len(stored) == metrics["experience/stored_groups"] <= 2
        assert (metrics["actor/replayed_tokens_share"] > 0) == bool(stored)
    assert sum(metrics["experience/stored_groups"] for metrics in steps.values()) > 0
