"""A buffer of several threads: adders, samplers and savers at once; and of no second process."""

import os
import pickle
import sys
import threading

import invariants
import pytest
from buffer_rows import ALL, right, wrong

from exgrpo.buffer import SelectiveReplay, TrajectoryBuffer

ADDS = 1_500


@pytest.fixture
def often():
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*works):
    """Run each in a thread of its own; the errors they raised."""
    raised = []

    def run(work):
        try:
            work()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    return raised


def test_adders_samplers_and_savers_do_not_disturb_each_other(tmp_path, often):
    buffer, replay = TrajectoryBuffer(max_size=40), SelectiveReplay(replay_probability=0.5)

    def add(name):
        for n in range(ADDS):
            buffer.add(right(f"q{n % 25}", f"{name}-{n}") if n % 3 else wrong(f"q{n % 25}"))

    def draw():
        for _ in range(100):
            if len(buffer):
                buffer.sample("uniform_random", 4, **ALL)
                replay.choose(buffer, 4)
            buffer.eligible()

    def save():
        for n in range(4):
            buffer.policy_snapshot = n
            buffer.save(tmp_path / "buffer")

    assert at_once(lambda: add("a"), lambda: add("b"), draw, save) == []
    invariants.check(buffer.pool)
    buffer.save(tmp_path / "buffer")
    assert len(TrajectoryBuffer.load(tmp_path / "buffer")) == len(buffer) == 40


def test_a_fork_is_told_that_the_buffer_is_its_parents():
    buffer = TrajectoryBuffer()
    read, written = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            buffer.add(right())
        except RuntimeError as error:
            os.write(written, str(error).encode())
        finally:
            os._exit(0)
    os.close(written)
    os.waitpid(child, 0)
    said = os.read(read, 1000).decode()
    os.close(read)
    assert f"of process {os.getpid()}" in said and "save() and load()" in said and "\n" not in said
    assert buffer.add(right())


def test_another_process_is_refused_a_copy():
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(TrajectoryBuffer())


def test_memory_is_flat_over_many_adds():
    buffer = TrajectoryBuffer(max_size=500)
    row = right("q", "text", tokens=[1, 2, 3], log_probs=[-0.5] * 3)

    def add(count):
        for n in range(count):
            buffer.add(
                {
                    **row,
                    "prompt": f"q{n % 200}",
                    "rollout": f"{n}",
                    "tokens": [n % 97, n % 89, n % 83],
                }
            )
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = add(20_000)
    assert add(60_000) - before < 8 << 20
