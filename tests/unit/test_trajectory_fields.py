"""What a trajectory carries beside tokens and log-probs, through pool, disk and files; pools of
0.2.0.
"""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest

from exgrpo import (
    ExperienceConfig,
    ExperiencePool,
    ExperienceReplay,
    PoolFolder,
    RolloutGroup,
    Trajectory,
)
from exgrpo.experience.packing import pack, unpack
from exgrpo.saved.pool_files import read_groups, read_manifest, read_saved
from exgrpo_tools.inspect.exchange import read_rows, to_row, write_rows

CONFIG = ExperienceConfig(rollout_n=4)
NOTE = json.dumps({"tool": "search", "text": "é €"}, ensure_ascii=False)
GRADER = "full; rules 5e1c09aa, math-verify 0.9.0; intervals"
RICH = Trajectory([5, 6, 7], [-0.5, -1.0, -0.25], 3, 0.5, [1, 0, 1], 0.75, NOTE, GRADER)
PLAIN = Trajectory([5, 6], [-0.5, -1.0], 3, 0.5)
TEXT = Trajectory.without_log_probs([], 4, 0.1, None, 1.0, "a response without tokens")
GOLDEN = Path(__file__).parents[1] / "golden" / "format4"  # written by the code of 0.2.0


def facts(trajectory):
    mask = trajectory.loss_mask
    return (
        trajectory.tokens.tolist(),
        [None if np.isnan(value) else value for value in trajectory.log_probs.tolist()],
        trajectory.step,
        trajectory.entropy,
        None if mask is None else mask.tolist(),
        trajectory.reward,
        trajectory.note,
        trajectory.grader,
    )


def as_json(trajectory):
    return [
        None if fact != fact else fact for fact in facts(trajectory)
    ]  # an entropy that is not known is NaN


def held():
    pool = ExperiencePool(CONFIG)
    pool.observe(RolloutGroup("q", 4, (RICH, PLAIN)))
    pool.file("text", 2, TEXT)
    return pool


@pytest.mark.parametrize("trajectory", [RICH, PLAIN, TEXT])
def test_nothing_is_lost_in_the_packed_form(trajectory):
    assert facts(unpack(pack(7, trajectory))) == facts(trajectory)


def test_a_mask_of_ones_is_none_and_arrays_are_the_trajectorys_own():
    mask = np.array([True, False])
    trajectory = Trajectory([1, 2], [-0.1, -0.2], 0, loss_mask=mask)
    mask[0] = False
    assert (
        trajectory.loss_mask.tolist() == [True, False] and not trajectory.loss_mask.flags.writeable
    )
    assert Trajectory([1, 2], [-0.1, -0.2], 0, loss_mask=[1, 1]).loss_mask is None
    assert trajectory.of_actions(np.array([3.0, 4.0])).tolist() == [3.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss_mask": [1]}, r"loss_mask has shape \(1,\) for 2 tokens: must be as many"),
        ({"loss_mask": [1, 2]}, "loss_mask: must be true or false, or 0 or 1, at each token"),
        ({"loss_mask": [0, 0]}, "loss_mask leaves no token"),
        ({"reward": float("inf")}, "reward=inf: must be a finite number"),
        ({"reward": "good"}, "reward=good: must be a finite number"),
        ({"note": ""}, "note='': must be a text that is not empty, or None"),
        ({"note": {"a": 1}}, "must be a text that is not empty, or None"),
        ({"note": "\ud800"}, "must be valid Unicode"),
        ({"grader": 7}, "grader='7': must be a text that is not empty, or None"),
        (
            {"step": 2**32},
            "step=4294967296: must be an integer of at least 0 and at most 4294967295",
        ),
    ],
)
def test_a_wrong_field_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Trajectory([1, 2], [-0.1, -0.2], **{"step": 0} | fields)


def test_no_tokens_need_a_note():
    with pytest.raises(ValueError, match=r"tokens has shape \(0,\): must be 1-D and not empty"):
        Trajectory.without_log_probs([], 0)
    assert not TEXT.has_log_probs and len(TEXT) == 0


def test_texts_are_told_apart_by_their_notes_and_responses_by_their_tokens():
    pool = ExperiencePool(CONFIG)
    for note in ("one", "two", "one"):
        pool.file("q", 2, Trajectory.without_log_probs([], 0, note=note))
    assert [each.note for each in pool.candidates("q")] == ["two", "one"]
    pool.file("r", 2, RICH)
    pool.file("r", 2, Trajectory(RICH.tokens, RICH.log_probs, 9, reward=0.5))
    assert [facts(each)[4:] for each in pool.candidates("r")] == [
        (None, 0.5, None, None)
    ]  # the newer one


def test_masks_and_notes_count_for_memory():
    plain, rich = ExperiencePool(CONFIG), ExperiencePool(CONFIG)
    plain.file("q", 2, Trajectory(RICH.tokens, RICH.log_probs, 3))
    rich.file("q", 2, RICH)
    more = rich.metrics()["pool_bytes"] - plain.metrics()["pool_bytes"]
    assert plain.metrics()["pool_bytes"] == 224 and more == 1 + len(NOTE.encode())


def test_a_saved_pool_gives_everything_back(tmp_path):
    pool = held()
    PoolFolder().save(pool, tmp_path / "pool", 1, {})
    loaded = PoolFolder().load(tmp_path / "pool", CONFIG, 1, {})
    for question in ("q", "text"):
        assert list(map(facts, loaded.candidates(question))) == list(
            map(facts, pool.candidates(question))
        )
    frame = pandas.read_parquet(tmp_path / "pool" / "trajectories")
    assert frame["grader"].fillna("").tolist() == [GRADER, "", ""]
    assert frame["reward"].tolist() == [0.75, 1.0, 1.0] and frame["note"].fillna("").tolist() == [
        NOTE,
        "",
        TEXT.note,
    ]
    assert list(frame["loss_mask"][0]) == [True, False, True] and frame["loss_mask"][1] is None


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_an_exported_row_gives_everything_back(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    write_rows(path, [to_row("q", 2, trajectory, None, None) for trajectory in (RICH, PLAIN)])
    rows = [row for _, row in read_rows(path)]
    assert [row["reward"] for row in rows] == [0.75, 1.0] and [row["note"] for row in rows] == [
        NOTE,
        None,
    ]
    assert rows[0]["loss_mask"] == [True, False, True] and rows[1]["loss_mask"] is None
    assert [row["grader"] for row in rows] == [GRADER, None]


def test_a_pool_of_version_0_2_0_is_read_with_all_that_it_holds_and_draws_as_it_did(tmp_path):
    """Its run had keys that are gone (exp_review_share, exp_bucket_mean=batch): the state's
    `bucket_mean` is theirs.
    """
    expected, folder = json.loads((GOLDEN / "expected.json").read_text()), GOLDEN / "pool"
    state = read_manifest(folder)["replay_state"]
    assert (
        "bucket_mean" in state and {"reviewed", "returned"} <= read_saved(folder).history[-1].keys()
    )
    config = ExperienceConfig(rollout_n=4, experience_start_sratio=0)
    for _ in range(2):  # as 0.2.0 wrote it, and saved again
        disk = PoolFolder()
        pool = disk.load(folder, config, 14, {"data_fingerprint": "abc"})
        held = {question: [*map(as_json, pool.candidates(question))] for question in pool}
        for question, known in expected["pool"].items():
            assert pool.bucket(question) == known["bucket"]
            assert held.pop(question) == known["trajectories"]
        assert not held and pool.retired == expected["retired"]
        rows = [
            [row.step, row.question, row.grader, row.odds.bucket, row.chosen]
            + [row.tokens, row.digest, len(row.candidates)]
            for row in pool.replays
        ]
        assert rows == expected["replayed"]
        groups = read_groups(folder)
        stored = [
            [g.question, g.step, g.prompt.tolist(), [*map(as_json, g.rollouts)]] for g in groups
        ]
        assert stored == expected["groups"]
        questions = [f"question-{number}" for number in range(12)]
        replay, stream = ExperienceReplay(config, questions, pool), iter(questions)
        replay.restore(state)
        disk.save(pool, tmp_path / "pool", 14, {"data_fingerprint": "abc"}, replay.state(), groups)
        drawn = replay.draw(15, 6, lambda stream=stream: (next(stream), False))
        assert {"replayed": drawn.replayed, "fresh": drawn.fresh} == expected["drawn"]
        folder = tmp_path / "pool"
