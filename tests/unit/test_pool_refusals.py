"""A saved pool that cannot be read or written: damage, other settings, another writer, a
full disk.
"""

import json
import resource
import signal
import subprocess
import sys

import pytest
from saved_pools import DISKS, draws, live, lived, load, save

from exgrpo.experience.config import ExperienceConfig
from exgrpo.saved.pool_files import DamagedPool, checksum_of


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "other"}, "data is 'fingerprint', expected 'other'"),
        ({"more": 1}, "more is None, expected 1"),
        ({"questions": "40"}, "questions is 40, expected '40'"),
        ({"step": 3}, "step is 0, expected 3"),
        ({"config": ExperienceConfig(rollout_n=4)}, "rollout_n is 8, expected 4"),
    ],
)
def test_what_belongs_elsewhere_is_refused_with_both_sides(tmp_path, changes, message):
    save(lived(), tmp_path / "pool")
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path / "pool", **changes)
    assert not isinstance(caught.value, DamagedPool)  # nothing to fall back from


def test_another_format_is_refused_with_both_sides(tmp_path):
    save(lived(), tmp_path / "pool")
    path = tmp_path / "pool" / "manifest.json"
    manifest = json.loads(path.read_text()) | {"format_version": 5}
    manifest.pop("checksum")
    path.write_text(json.dumps(manifest | {"checksum": checksum_of(manifest)}))
    with pytest.raises(ValueError, match="format_version is 5, expected 4"):
        load(tmp_path / "pool")


def test_a_bit_that_flipped_in_the_format_version_is_damage(tmp_path):
    save(lived(), tmp_path / "pool")
    manifest = tmp_path / "pool" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 4', '"format_version": 5'))
    with pytest.raises(DamagedPool, match=r"checksum of manifest\.json"):
        load(tmp_path / "pool")


@pytest.mark.parametrize(
    "name",
    [
        "live.parquet",
        "questions.parquet",
        "history.parquet",
        "replayed.parquet",
        "trajectories",
        "manifest.json",
    ],
)
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_damage_is_named(tmp_path, name, damage):
    save(lived(), tmp_path / "pool")
    path = tmp_path / "pool" / name
    path = next(path.iterdir()) if path.is_dir() else path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    with pytest.raises(DamagedPool, match=path.name):
        load(tmp_path / "pool")


def test_a_segment_that_the_manifest_no_longer_names_is_missed(tmp_path):
    save(lived(), tmp_path / "pool")
    path = tmp_path / "pool" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("checksum")
    manifest["segments"] = []
    path.write_text(json.dumps(manifest | {"checksum": checksum_of(manifest)}))
    with pytest.raises(DamagedPool, match=r"its segments hold 0 of \d+ trajectories"):
        load(tmp_path / "pool")


def test_no_pool_is_no_damage(tmp_path):
    with pytest.raises(FileNotFoundError, match="no saved pool in"):
        load(tmp_path / "pool")


def test_an_identity_that_is_not_json_leaves_the_old_state(tmp_path):
    pool = lived()
    save(pool, tmp_path / "pool")
    with pytest.raises(TypeError):
        DISKS[pool].save(pool, tmp_path / "pool", 0, {"data": object()})
    assert draws(load(tmp_path / "pool")) == draws(pool)
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]


def test_a_second_writer_is_refused_in_one_line(tmp_path):
    pool = lived()
    save(pool, tmp_path / "pool")
    other = "import sys, time; from pathlib import Path; from exgrpo.saved import durable\n"
    other += "with durable.exclusive(Path(sys.argv[1])): print('holds', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", other, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "holds\n"
        with pytest.raises(
            OSError, match=r"another process is writing to .*what was saved before is intact"
        ) as caught:
            save(live(pool, 1), tmp_path / "pool")
        assert "\n" not in str(caught.value)
        process.send_signal(signal.SIGKILL)
    save(pool, tmp_path / "pool")  # a dead writer holds nothing
    assert draws(load(tmp_path / "pool")) == draws(pool)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OSError, match=r"file/pool could not be written \(.*\); what was saved before is intact"
    ):
        save(lived(), tmp_path / "file" / "pool")


def test_a_full_disk_leaves_the_old_state_and_no_rubbish(tmp_path):
    old, new = lived(0), lived(1)
    save(old, tmp_path / "pool")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # a file that may not grow is as near to a full disk as a test without a disk of its own gets
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        with pytest.raises(
            OSError, match=r"could not be written \(.*\); what was saved before is intact"
        ):
            save(new, tmp_path / "pool")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]
    assert draws(load(tmp_path / "pool")) == draws(old)
    save(new, tmp_path / "pool")
    assert draws(load(tmp_path / "pool")) == draws(new)
