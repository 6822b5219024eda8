"""A reader never writes: beside a process that saves all the time, no save and no load fails."""

import subprocess
import sys
from pathlib import Path

import pytest
from saved_pools import lived, save

from exgrpo.buffer import TrajectoryBuffer

SAVES = 8
KINDS = ("buffer", "pool", "adopt")


def write(kind, folder):
    """Save SAVES times, then leave a note; an error ends the process."""
    pool, buffer = lived(), buffer_of(0)
    for number in range(SAVES):
        if kind == "buffer":
            buffer.add(row(number))
            buffer.save(folder / "it")
        else:
            save(pool, folder / "it")
    (folder / "done").touch()


def read(kind, folder):
    """Load until the writer is done; prints how often."""
    from saved_pools import CONFIG, IDENTITY

    from exgrpo.saved.pool_folder import PoolFolder

    count = 0
    while not (folder / "done").exists():
        if kind == "buffer":
            TrajectoryBuffer.load(folder / "it")
        elif kind == "pool":
            PoolFolder().load(folder / "it", CONFIG, 0, IDENTITY)
        else:
            PoolFolder().adopt(folder / "it", CONFIG, IDENTITY)
        count += 1
    print(count)


def row(number):
    return {
        "prompt": f"q{number}",
        "rollout": f"r{number}",
        "reward": 1.0,
        "is_correct": True,
        "entropy": 0.5,
    }


def buffer_of(count):
    buffer = TrajectoryBuffer()
    for number in range(count):
        buffer.add(row(number))
    return buffer


@pytest.mark.parametrize("kind", KINDS)
def test_no_save_and_no_load_fails(tmp_path, kind):
    if kind == "buffer":
        buffer_of(3).save(tmp_path / "it")
    else:
        save(lived(), tmp_path / "it")

    def start(role):
        command = [sys.executable, __file__, role, kind, str(tmp_path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    readers = [start("read"), start("read")]
    writer = start("write")
    _, wrong = writer.communicate()
    (tmp_path / "done").touch()  # also where the writer failed
    said = [reader.communicate() for reader in readers]
    assert (writer.returncode, wrong) == (0, "")
    assert [
        (reader.returncode, error) for reader, (_, error) in zip(readers, said, strict=True)
    ] == [(0, "")] * 2
    assert all(int(count) > 0 for count, _ in said)


if __name__ == "__main__":
    {"read": read, "write": write}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
