"""Accidents from outside end a command in one line; its own errors keep their traceback."""

import errno
import os
import re
import subprocess
import sys
import time

import pytest

from exgrpo import console
from exgrpo.console import in_one_line, phase
from exgrpo.saved import durable


def ended(capsys, raised, **texts):
    """Exit status and what was printed."""
    with pytest.raises(SystemExit) as caught, in_one_line("tool", **texts):
        raise raised
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "texts", "status", "line"),
    [
        (KeyboardInterrupt(), {}, 130, "tool: stopped\n"),
        (KeyboardInterrupt(), {"remains": "it goes on"}, 130, "tool: stopped; it goes on\n"),
        (
            OSError(errno.ENOSPC, "", "a/b"),
            {},
            1,
            "tool: a/b could not be used: the disk is full\n",
        ),
        (
            OSError(errno.EROFS, "", "a/b"),
            {},
            1,
            "tool: a/b could not be used: the file system is read-only\n",
        ),
        (
            OSError(errno.EACCES, "", "b"),
            {},
            1,
            "tool: b could not be used: no permission to write or read there\n",
        ),
        (OSError(errno.ENOSPC, ""), {}, 1, "tool: a file could not be used: the disk is full\n"),
        (
            ModuleNotFoundError("", name="tqdm"),
            {"packages": "pip install x"},
            2,
            "tool: tqdm is not installed: pip install x\n",
        ),
    ],
)
def test_an_accident_is_one_line(capsys, raised, texts, status, line):
    assert ended(capsys, raised, **texts) == (status, line)


@pytest.mark.parametrize(
    "raised",
    [ValueError("x"), OSError(errno.EPIPE, ""), ModuleNotFoundError("", name="exgrpo.gone")],
)
def test_errors_of_its_own_go_through(raised):
    with pytest.raises(type(raised)), in_one_line("tool", packages="pip install x"):
        raise raised


def test_an_error_of_a_ray_actor_is_seen_through(capsys):
    wrapped = OSError("a task failed")
    wrapped.cause = OSError(errno.ENOSPC, "", "a/b")
    assert ended(capsys, wrapped) == (1, "tool: a/b could not be used: the disk is full\n")


def test_a_full_disk_names_the_file_that_was_being_written(tmp_path):
    with (
        pytest.raises(OSError, match=re.escape(str(tmp_path / "file.json"))),
        durable.replaced(tmp_path / "file.json"),
    ):
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")


def test_a_long_phase_says_what_it_is_and_how_long_it_took_and_a_short_one_nothing(
    capsys, monkeypatch
):
    with phase("loading"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "AFTER_S", 0.05)
    with phase("loading"):
        time.sleep(0.2)
    assert re.fullmatch(
        r"exgrpo: loading \.\.\.\nexgrpo: loading took 0 s\n", capsys.readouterr().err
    )


def test_a_phase_that_fails_leaves_its_error_alone():
    with pytest.raises(ValueError, match="mine"), phase("loading"):
        raise ValueError("mine")


COMMANDS = {
    "exgrpo-train": "exgrpo.commands:train",
    "exgrpo-eval": "exgrpo_eval.__main__:main",
    "exgrpo-data": "exgrpo_data.__main__:main",
    "exgrpo-inspect": "exgrpo_tools.inspect.__main__:main",
    "exgrpo-sizing": "exgrpo_tools.sizing:main",
}


def run(command: str, *arguments: str) -> subprocess.CompletedProcess:
    module, _, function = COMMANDS[command].partition(":")
    code = f"import sys; from {module} import {function}; sys.argv[0] = {command!r}; {function}()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_and_a_version_that_load_no_framework(command):
    said = run(command, "--help")
    assert (
        said.returncode == 0
        and command in said.stdout.splitlines()[0]
        and "--version" in said.stdout
    )
    assert re.fullmatch(r"exgrpo \d+\.\d+\.\d+\n", run(command, "--version").stdout)
    module = COMMANDS[command].partition(":")[0]
    code = (
        f"import sys, {module}; print(*{{'torch', 'numpy', 'ray', 'verl', 'hydra'}} & "
        "set(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    ).stdout.split()
    assert loaded == (["numpy"] if command == "exgrpo-inspect" else [])


def test_scripts_are_reached_by_name_and_a_wrong_name_is_one_line():
    assert "--question_key" in run("exgrpo-data", "train", "--help").stdout
    assert "--shared_only" in run("exgrpo-eval", "compare", "--help").stdout
    wrong = run("exgrpo-eval", "comapre")
    assert wrong.returncode == 2
    assert (
        wrong.stderr
        == "exgrpo-eval: comapre: must be one of generate, report, compare, sample-size, export\n"
    )
