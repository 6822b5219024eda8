"""verl's other modes with replay, by the real trainer: what was in flight when a run was killed is trained on once."""

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


@pytest.fixture(scope="module", params=MODES)
def killed_and_resumed(request, make_settings, forks, tmp_path_factory):
    """The run until the kill, the checkpoint's state, and the run that goes on from it."""
    folder = tmp_path_factory.mktemp(request.param)
    stack = {"stack=cpu": "stack=cpu_separate"} if request.param == "separate_async" else {}
    settings = [stack.get(setting, setting) for setting in make_settings(folder)]
    arguments = ["exgrpo.main_mix_ppo", *settings, f"trainer.v1.trainer_mode={request.param}", *MODES[request.param]]
    arguments += [f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={SAVED}"]
    arguments += ["trainer.max_actor_ckpt_to_keep=null", "trainer.experience_start_sratio=0", *KL_AND_ENTROPY, forks]
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
    before = [first.sessions(step) for step in range(1, SAVED + 1)]
    after = [second.sessions(step) for step in range(SAVED + 1, STEPS + 1)]
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
        trained = second.sessions(step)
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
