"""verl's latest marker, whole, empty and absent; and what goes with a checkpoint's weights."""

from exgrpo import checkpoints


def make(root, step, *, data=True, actor=True):
    folder = checkpoints.step_folder(root, step)
    (folder / checkpoints.POOL).mkdir(parents=True)
    (folder / checkpoints.STATE).write_text("{}")
    if actor:
        (folder / "actor").mkdir()
    if data:
        (folder / "data.pt").write_text("x")
    return folder


def test_a_whole_marker_is_read_and_left_alone(tmp_path):
    make(tmp_path, 9)
    (tmp_path / checkpoints.MARKER).write_text("4")
    assert checkpoints.marked_step(tmp_path) == 4
    assert checkpoints.mend_marker(tmp_path) is None
    assert checkpoints.marked_step(tmp_path) == 4


def test_an_empty_marker_names_the_newest_whole_checkpoint(tmp_path):
    make(tmp_path, 2)
    make(tmp_path, 10)
    make(tmp_path, 12, data=False)
    (tmp_path / checkpoints.MARKER).write_text("")
    assert checkpoints.marked_step(tmp_path) is None
    assert checkpoints.mend_marker(tmp_path) == 10 == checkpoints.marked_step(tmp_path)
    assert not list(tmp_path.glob("*.tmp"))


def test_without_a_marker_there_is_nothing_to_mend(tmp_path):
    make(tmp_path, 2)
    assert checkpoints.mend_marker(tmp_path) is None
    assert checkpoints.marked_step(tmp_path) is None


def test_experience_goes_with_its_weights_and_nothing_else_does(tmp_path):
    old, new = make(tmp_path, 2, actor=False), make(tmp_path, 4)
    checkpoints.drop_experience_without_weights(tmp_path)
    assert sorted(path.name for path in old.iterdir()) == ["data.pt"]
    assert len(list(new.iterdir())) == 4
