"""The child that a forked worker keeps ready, and which becomes the first process that
multiprocessing spawns there.
"""

import json
import os
import subprocess
import sys

import pytest

# What a prepared process does: it imports and forks, and the fork plants; then it is the worker.
WORKER = """
import json, multiprocessing, os, sys
from verl_cpu.prepared import seed

imported_by = os.getpid()
born = []

def look(queue, code):
    worker = sys.modules["prepared"] if "prepared" in sys.modules else None
    queue.put({
        "pid": os.getpid(), "parent": os.getppid(), "imported_by": worker and worker.imported_by,
        "born": worker and worker.born, "late": os.environ.get("LATE"), "early": os.environ.get("EARLY"),
        "folder": os.getcwd(), "open": len(os.listdir("/proc/self/fd")),
        "name": multiprocessing.current_process().name,
    })
    queue.close()
    queue.join_thread()
    print("said by", code, flush=True)
    print("error of", code, file=sys.stderr, flush=True)
    sys.exit(code)

if __name__ == "__main__":
    sys.modules["prepared"] = sys.modules["__main__"]
    os.environ["EARLY"] = "1"
    if os.fork():
        os.wait()
        sys.exit()
    seed.plant(lambda: born.append(os.getpid()))
    del os.environ["EARLY"]
    os.environ["LATE"] = "1"
    os.chdir(sys.argv[1])
    log = os.open("log", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):  # as Ray does with the streams of its workers
        os.dup2(log, stream)
    context = multiprocessing.get_context("spawn")
    told = []
    for code in (3, 4):
        queue = context.Queue()
        process = context.Process(target=look, args=(queue, code), name=f"number {code}")
        process.start()
        told.append(queue.get(timeout=60) | {"expected": process.pid})
        process.join()
        told[-1]["code"] = process.exitcode
    with open("told.json", "w") as file:
        json.dump({"worker": os.getpid(), "imported_by": imported_by, "told": told}, file)
"""  # noqa: E501


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the worker and two processes that it spawned said, and the log of the three."""
    folder = tmp_path_factory.mktemp("seed")
    (folder / "worker.py").write_text(WORKER)
    (folder / "elsewhere").mkdir()
    subprocess.run([sys.executable, "worker.py", "elsewhere"], cwd=folder, check=True)
    return json.loads((folder / "elsewhere" / "told.json").read_text()), (
        folder / "elsewhere" / "log"
    ).read_text()


def test_the_first_process_that_is_spawned_has_what_was_imported_and_the_second_is_an_ordinary_one(
    told,
):
    whole, _ = told
    first, second = whole["told"]
    assert first["imported_by"] == whole["imported_by"] and second["imported_by"] is None
    assert first["born"] == [first["pid"]]  # called in the child, once


@pytest.mark.parametrize("number", [0, 1])
def test_it_is_a_child_of_its_parent_with_what_that_has_by_then(told, number):
    whole, log = told
    process = whole["told"][number]
    assert process["parent"] == whole["worker"] and process["pid"] == process["expected"]
    assert process["code"] == 3 + number and process["name"] == f"number {3 + number}"
    assert process["late"] == "1" and process["early"] is None
    assert os.path.basename(process["folder"]) == "elsewhere"
    assert f"said by {3 + number}\nerror of {3 + number}\n" in log


def test_it_has_no_more_files_open_than_a_spawned_process(told):
    first, second = told[0]["told"]
    assert first["open"] == second["open"]


def test_it_ends_with_a_parent_that_spawns_nothing():
    code = """
import os, sys
from verl_cpu.prepared import seed
seed.plant(print)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    assert (
        done.returncode == -9 and done.stdout == b""
    )  # the end of the pipe: nobody holds it any more
