"""What a trainer saves of replay and opens again, verl's own part of the checkpoint played by two
files.
"""

import pandas as pd
import pytest
from composed import configuration
from saved_pools import archive

from exgrpo.data_files import read_question_ids
from exgrpo.experience.config import ExperienceConfig
from exgrpo.experience.trajectory import RolloutGroup, Trajectory
from exgrpo.on_verl import checkpoints
from exgrpo.on_verl.in_flight import InFlight, Prompt
from exgrpo.on_verl.saved_run import SavedRun
from exgrpo.prompts import load_tokenizer


def opened(files, known, *overrides):
    config = configuration(files, *overrides)
    experience = ExperienceConfig.from_mapping(config.trainer, 8)
    data = [str(files / "data.parquet")]
    return SavedRun.open(config, experience, data, load_tokenizer(files / "model"), known)


def test_a_run_goes_on_with_its_pool_its_name_and_its_prompts(files):
    known = read_question_ids([str(files / "data.parquet")])
    new, replay = opened(files, known)
    assert new.step == 0 and known[0] not in replay.pool
    replay.pool.observe(RolloutGroup(known[0], 8, (Trajectory([1, 2], [-1.0, -1.0], step=1),)))
    in_flight = InFlight()
    in_flight.add("u", Prompt(known[1], False, True))
    folder = files / "checkpoints" / "global_step_3"
    (folder / checkpoints.QUEUE).mkdir(parents=True)
    assert new.save(replay, folder, 3, in_flight) == []
    archive(folder / "data.pt")
    (files / "checkpoints" / checkpoints.MARKER).write_text("3")

    again, replay = opened(files, known)
    assert (again.step, again.run) == (3, new.run) and known[0] in replay.pool
    restored = InFlight()
    again.restore(restored, {"u"})
    assert restored.state() == in_flight.state()
    again.expect_weights_of(3)
    with pytest.raises(RuntimeError, match="weights of step 2 with the pool of step 3"):
        again.expect_weights_of(2)


def saved(files, known):
    """A checkpoint of step 3 with one success in its pool."""
    new, replay = opened(files, known)
    replay.pool.observe(RolloutGroup(known[0], 8, (Trajectory([1, 2], [-1.0, -1.0], step=1),)))
    folder = files / "checkpoints" / "global_step_3"
    folder.mkdir(parents=True)
    new.save(replay, folder, 3, None)
    archive(folder / "data.pt")
    (files / "checkpoints" / checkpoints.MARKER).write_text("3")


THINK = "reward.custom_reward_function.reward_kwargs.require_think"


@pytest.mark.parametrize(
    ("golds", "given", "said"),
    [
        (False, f"{THINK}=False", None),
        (False, f"{THINK}=True", "was judged by strict; rules"),
        (True, f"{THINK}=False", "was judged against other golds than now: it is kept"),
    ],
)
def test_a_pool_that_others_have_judged_is_a_line(files, caplog, golds, given, said):
    known = read_question_ids([str(files / "data.parquet")])
    saved(files, known)
    if golds:
        table = pd.read_parquet(files / "data.parquet")
        table["reward_model"] = [{"ground_truth": "7"}] * len(table)
        table.to_parquet(files / "data.parquet")
    caplog.clear()
    _, replay = opened(files, known, given)
    assert known[0] in replay.pool
    assert (said in caplog.text) if said else "judged" not in caplog.text
    _, replay = opened(files, known, given, "trainer.experience_other_judge=drop")
    assert (known[0] in replay.pool) is (said is None)
    assert ("it is dropped, 1 trajectories" in caplog.text) is (said is not None)
