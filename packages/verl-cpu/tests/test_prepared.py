"""Workers as forks of a prepared process: what they are given, and what happens where there is
none.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from verl_cpu.prepared import PreparedProcess
from verl_cpu.prepared_workers import queue_threads

MODULE = """
import gc, os, tempfile
tempfile.gettempdir()  # which remembers it
collected_while_imported = gc.isenabled()
imported_by = os.getpid()
read_at_import = os.environ["AT_IMPORT"]
def fits(environment):
    return environment.get("JOB") == "1"
def forked():
    os.environ["SEEN_BY_FORKED"] = os.environ["OF_THE_WORKER"]
"""
WORKER = """
import gc, json, os, sys, tempfile
prepared = sys.modules.get("prepared_module")
print(json.dumps({
    "arguments": sys.argv[1:], "folder": os.getcwd(), "beside": sys.path[0],
    "name": __name__, "asked": sys.stdin.read(),
    "forked_from": prepared and prepared.imported_by, "at_import": prepared and prepared.read_at_import,
    "of_the_worker": os.environ["OF_THE_WORKER"], "seen": os.environ.get("SEEN_BY_FORKED"),
    "collected": [prepared and prepared.collected_while_imported, gc.isenabled()], "kept": gc.get_freeze_count(),
    "temporary": tempfile.gettempdir(),
    "others": os.environ.get("AT_IMPORT"), "leads_its_group": os.getpgrp() == os.getpid(),
}))
print("to stderr", file=sys.stderr)
"""  # noqa: E501


def path_from(folder):
    """This process's import path, from the folder on."""
    return os.pathsep.join([str(folder), *filter(None, sys.path)])


@pytest.fixture
def prepared(tmp_path):
    (tmp_path / "prepared_module.py").write_text(MODULE)
    (tmp_path / "worker.py").write_text(WORKER)
    process = PreparedProcess(
        "prepared_module", os.environ | {"PYTHONPATH": path_from(tmp_path), "AT_IMPORT": "early"}
    )
    yield process
    process.stop()


def run_worker(prepared, folder, job="1"):
    """What the worker says of itself, and its stderr."""
    script = folder / "worker.py"
    variables = {"PATH": os.environ["PATH"], "OF_THE_WORKER": "late", "JOB": job}
    variables["TMPDIR"] = str(folder)
    done = subprocess.run(
        [*shlex.split(prepared.py_executable), str(script), "--flag", "a value"],
        input="words",
        capture_output=True,
        text=True,
        env=variables,
        cwd=folder / "elsewhere",
    )
    return json.loads(done.stdout), done.stderr


def test_a_worker_is_a_fork_with_arguments_environment_folder_and_streams_of_its_own(
    prepared, tmp_path
):
    (tmp_path / "elsewhere").mkdir()
    for _ in range(2):
        told, errors = run_worker(prepared, tmp_path)
        assert (
            told["forked_from"] and told["at_import"] == "early"
        )  # imported once, before it was asked for
        assert (
            told["arguments"] == ["--flag", "a value"]
            and told["name"] == "__main__"
            and told["asked"] == "words"
        )
        assert told["folder"] == str(tmp_path / "elsewhere") and told["beside"] == str(tmp_path)
        assert told["temporary"] == str(tmp_path)
        # a signal to the driver's group reaches neither; Ray kills a worker's group, with all that
        # is in it
        assert (
            told["leads_its_group"] and os.getpgid(prepared._process.pid) == prepared._process.pid
        )
        # what is imported is not looked at by the collector, which works again in the worker
        assert told["collected"] == [False, True] and told["kept"] > 1000
        assert told["of_the_worker"] == told["seen"] == "late" and told["others"] is None
        assert errors == "to stderr\n"


@pytest.mark.parametrize("reason", ["stopped", "another job"])
def test_where_nothing_can_be_forked_the_worker_is_an_ordinary_one(prepared, tmp_path, reason):
    (tmp_path / "elsewhere").mkdir()
    if reason == "stopped":
        prepared.stop()
    told, errors = run_worker(prepared, tmp_path, job="1" if reason == "stopped" else "2")
    assert (
        told["forked_from"] is None
        and told["arguments"] == ["--flag", "a value"]
        and told["asked"] == "words"
    )
    assert (told["folder"], told["of_the_worker"], errors) == (
        str(tmp_path / "elsewhere"),
        "late",
        "to stderr\n",
    )


def ask(prepared, *sent, user=None):
    """The answer to these bytes, from a process of its own: 1 if it forked, 0 if it did not."""
    if (child := os.fork()) == 0:
        try:
            if user is not None:
                os.setuid(user)
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
                open(os.devnull, "r+") as nothing,
            ):
                connection.connect(f"\0{shlex.split(prepared.py_executable)[-1]}")
                answer = b""
                with contextlib.suppress(ConnectionError):  # closed before all was read
                    socket.send_fds(connection, [sent[0]], [nothing.fileno()] * 3)
                    connection.sendall(b"".join(sent[1:]))
                    connection.shutdown(socket.SHUT_WR)
                    answer = connection.recv(1)
            os._exit(len(answer))
        finally:
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_worker_that_is_killed_while_it_asks_ends_itself_alone(prepared, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for sent in (b"", b"\0\0"), ((100).to_bytes(8, "big"), b'{"argum'):
        assert ask(prepared, *sent) == 0
    assert run_worker(prepared, tmp_path)[0]["forked_from"]


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can ask as another user")
def test_for_another_user_nothing_is_forked(prepared, tmp_path):
    environment = {"JOB": "1", "OF_THE_WORKER": ""}
    wanted = {
        "arguments": [str(tmp_path / "worker.py")],
        "environment": environment,
        "folder": str(tmp_path),
    }
    told = json.dumps(wanted).encode()
    answers = [
        ask(prepared, len(told).to_bytes(8, "big"), told, user=user) for user in (None, 65534)
    ]
    assert answers == [1, 0]


def test_it_ends_with_the_process_that_made_it(tmp_path):
    (tmp_path / "prepared_module.py").write_text(MODULE)
    code = (
        "import os, signal; from verl_cpu.prepared import PreparedProcess\n"
        "made = PreparedProcess('prepared_module', os.environ | {'AT_IMPORT': ''})\n"
        "print(made._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = os.environ | {"PYTHONPATH": path_from(tmp_path)}
    reader = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    told = (
        reader.stdout.read()
    )  # its end: nobody holds the pipe any more, the prepared process neither
    assert reader.wait() == -9 and not os.path.exists(f"/proc/{int(told)}/exe")


def test_transfer_queue_is_asked_for_no_more_threads_than_there_are_cores(monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None if logical else 2)
    assert queue_threads() == 2
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64)
    assert queue_threads() == 8
    # it warns at every put and get where it finds fewer; both of its modules read the variable
    folder = Path(find_spec("transfer_queue").origin).parent
    readers = [folder / "client.py", folder / "storage" / "simple_storage.py"]
    assert all('os.environ.get("TQ_NUM_THREADS", 8)' in file.read_text() for file in readers)
