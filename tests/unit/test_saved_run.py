"""What a trainer saves of replay and opens again, verl's own part of the checkpoint played by two
files.
"""

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


def opened(files, known):
    config = configuration(files)
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
