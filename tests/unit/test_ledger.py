"""The ledger of finished groups: what a kill or a disk does to its file costs the end of it at
most, and one line.
"""

import os

import pytest

from exgrpo.saved.ledger import Finished, Ledger

HEADER = {"checkpoint": "step 2, abc", "settings": "def"}
GROUPS = [Finished(position, f"prompt {position}", bytes([position]) * 9) for position in range(4)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "groups.ledger"


def opened(path, header=HEADER, limit=10_000):
    ledger = Ledger(path, limit)
    return ledger, ledger.open(header)


def there(ledger, step=3):
    """The positions of the step that can be taken; each is what was kept."""
    found = [each for each in GROUPS if ledger.take(step, each.position, each.prompt) is not None]
    for each in found:
        assert ledger.take(step, each.position, each.prompt) == each.data
        assert ledger.take(step, each.position, "another") is None
    return [each.position for each in found]


def written(path):
    ledger, _ = opened(path)
    ledger.keep(3, GROUPS[:2])
    ledger.keep(3, GROUPS[2:])
    return path.read_bytes()


def test_what_is_kept_can_be_taken_by_this_run_and_by_the_next(path):
    written(path)
    ledger, count = opened(path)
    assert there(ledger) == [0, 1, 2, 3] and count == 4 and there(ledger, step=4) == []
    ledger.keep(4, GROUPS[:1])
    assert there(opened(path)[0], step=4) == [0]


def test_cut_off_anywhere_the_groups_before_it_are_there_and_later_ones_can_follow(path, caplog):
    whole = written(path)
    seen = set()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        caplog.clear()
        ledger, count = opened(path)
        assert there(ledger) == [0, 1, 2, 3][:count] and len(caplog.records) <= 1
        ledger.keep(3, GROUPS[count:])
        assert there(opened(path)[0]) == [0, 1, 2, 3]
        seen.add(count)
    assert seen == {0, 1, 2, 3}


def test_a_flipped_bit_anywhere_costs_its_record_and_what_follows(path, caplog):
    whole = written(path)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        caplog.clear()
        ledger, count = opened(path)
        assert there(ledger) == [0, 1, 2, 3][:count] and count < 4
        (line,) = caplog.records
        assert f"damaged or cut off at byte {path.stat().st_size} of {len(whole)}" in line.message


@pytest.mark.parametrize("name", HEADER)
def test_groups_of_another_checkpoint_or_of_other_settings_are_dropped(path, caplog, name):
    written(path)
    ledger, count = opened(path, HEADER | {name: "other"})
    assert count == 0 and there(ledger) == [] and not path.exists()
    assert f"finished groups of other {name} are dropped" in caplog.text


def test_a_save_begins_the_file_anew(path):
    written(path)
    ledger, _ = opened(path)
    later = HEADER | {"checkpoint": "step 3"}
    ledger.begin(later)
    assert there(ledger) == [] and not path.exists()
    ledger.keep(4, GROUPS[:1])
    assert there(opened(path, later)[0], step=4) == [0]


def test_what_was_generated_before_other_groups_of_a_step_were_is_of_other_weights(path):
    """Also for a run that is killed before it keeps a group of that step."""
    ledger, _ = opened(path)
    ledger.keep(3, GROUPS[:2])
    ledger.keep(4, GROUPS)
    assert ledger.generated(4) == 0
    assert ledger.generated(3) == 4 and there(ledger) == [0, 1] and there(ledger, step=4) == []
    ledger, count = opened(path)
    assert count == 2 and there(ledger, step=4) == []
    ledger.keep(4, GROUPS[:1])
    ledger.keep(3, GROUPS[2:])
    assert there(opened(path)[0]) == [0, 1, 2, 3] and there(opened(path)[0], step=4) == []


def test_it_is_bounded_until_the_next_save(path, caplog):
    ledger, _ = opened(path, limit=300)
    for each in GROUPS:
        ledger.keep(3, [each])
    assert there(ledger) == [0, 1] and path.stat().st_size <= 300
    (line,) = caplog.records
    assert "no more groups are kept until the next save: it may have 300 bytes" in line.message
    ledger.begin(HEADER)
    ledger.keep(4, GROUPS[:1])
    assert there(ledger, step=4) == [0]


def test_a_disk_that_fails_costs_a_line_and_no_training(path, caplog, monkeypatch):
    ledger, _ = opened(path)
    ledger.keep(3, GROUPS[:1])

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        ledger.keep(3, GROUPS[1:])
    (line,) = caplog.records
    assert "until the next save: No space left on device" in line.message
    assert there(ledger) == [0] == there(opened(path)[0])
