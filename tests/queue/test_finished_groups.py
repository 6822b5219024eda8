"""Groups that finished before a kill come back from the ledger, row by row, on a real queue."""

import pytest
import torch
import transfer_queue as tq
from queue_trainer import STEP, WHOLE_STEP, K, make_ready, make_trainer, pass_batch, sample
from verl.utils.dataset.rl_dataset import collate_fn

from exgrpo.experience.experience_collate_fn import ExperienceMixCollateFn
from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainer
from exgrpo.on_verl import finished_groups, queue

LEDGER = "trainer.rollout_ledger_bytes=1000000"


def start(folder, *more, failing=()):
    """A trainer that has opened what is in the folder's ledger, and is ready for a step."""
    keys = [LEDGER, f"trainer.default_local_dir={folder}", *WHOLE_STEP, *more]
    trainer = make_trainer(ExperienceMixPPOTrainer, 9, set(failing), *keys)
    make_ready(trainer)
    header = {"checkpoint": "step 2", "settings": finished_groups.settings(trainer.config)}
    trainer.finished_groups.open(header, anew=False)
    return trainer


def clear():
    tq.kv_clear(keys=list(tq.kv_list("train")["train"]), partition_id="train")


def contents(batch):
    """Everything that a batch's rows are, by key."""
    rows = queue.read(batch.keys, "train")
    columns = {name: finished_groups._values(rows[name]) for name in list(rows.keys())}
    return {
        key: (tag, {name: values[i] for name, values in columns.items()})
        for i, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True))
    }


def equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key, (tag, row) in theirs.items():
        assert ours[key][0] == tag and ours[key][1].keys() == row.keys()
        for name, value in row.items():
            other = ours[key][1][name]
            if torch.is_tensor(value):
                assert other.dtype == value.dtype and torch.equal(other, value), (key, name)
            else:
                assert other == value, (key, name)
    return True


@pytest.mark.parametrize("left", [4, 2, 0], ids=["all", "some", "none"])
def test_a_step_goes_on_with_the_groups_that_were_finished(
    training_queue, tmp_path, monkeypatch, left
):
    first = start(tmp_path)
    whole = first.agent_loop_manager.generate_sequences

    def until_the_kill(batch):  # the others are being generated when it comes
        whole(batch)
        out = list(batch["uid"])[left:]
        tags = [{"is_prompt": True, "status": "running", "global_steps": STEP}] * len(out)
        if out:
            tq.kv_batch_put(keys=out, partition_id="train", tags=tags)

    monkeypatch.setattr(first.agent_loop_manager, "generate_sequences", until_the_kill)
    first._add_batch_to_generate()
    keep = first.finished_groups.keep  # as if the last rollouts had ended first
    monkeypatch.setattr(
        first.finished_groups, "keep", lambda done, tags: keep(done, dict(reversed(tags.items())))
    )
    first.replay_buffer._sync_metadata_from_transfer_queue()  # verl's look, at each poll
    clear()
    (tmp_path / "other").mkdir()
    unbroken = start(tmp_path / "other")
    unbroken._add_batch_to_generate()
    theirs = contents(sample(unbroken))
    clear()
    second = start(tmp_path)
    second._add_batch_to_generate()
    assert len(second.agent_loop_manager.asked) == 4 - left
    batch = sample(second)
    assert equal(contents(batch), theirs) and len(theirs) == 3 * K + K - 1
    assert len(second.in_flight.questions) == 4
    pass_batch(second, batch, {})
    clear()
    third = start(tmp_path)  # what the second generated has joined what it found
    third._add_batch_to_generate()
    assert not third.agent_loop_manager.asked


def test_another_question_or_another_number_of_rollouts_is_another_prompt(training_queue, tmp_path):
    first = start(tmp_path)
    first._add_batch_to_generate()
    sample(first)
    clear()
    second = start(tmp_path)
    second.train_dataset[1]["raw_prompt"] = [{"role": "user", "content": "another?"}]
    second._add_batch_to_generate()
    assert list(second.agent_loop_manager.asked.values()) == ["q1"]
    clear()
    third = start(tmp_path)
    third.mix_collate = ExperienceMixCollateFn(third._row, K + 1, collate_fn)
    third._add_batch_to_generate()
    assert len(third.agent_loop_manager.asked) == 4


def test_a_failed_group_is_generated_again_and_what_was_replaced_comes_back(
    training_queue, tmp_path
):
    first = start(tmp_path, failing={"q1"})
    first._add_batch_to_generate()
    theirs = contents(sample(first))  # with q4 for q1
    clear()
    second = start(tmp_path, failing={"q1"})
    second._add_batch_to_generate()
    ours = contents(sample(second))
    assert list(second.agent_loop_manager.asked.values()) == ["q1"] and equal(ours, theirs)


def test_groups_of_other_settings_are_dropped(training_queue, tmp_path, caplog):
    first = start(tmp_path)
    first._add_batch_to_generate()
    sample(first)
    clear()
    second = start(tmp_path, "actor_rollout_ref.actor.optim.lr=1e-5")
    second._add_batch_to_generate()
    assert len(second.agent_loop_manager.asked) == 4
    assert "finished groups of other settings are dropped" in caplog.text
