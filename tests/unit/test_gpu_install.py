"""The GPU stack's lock against verl's requirements, and the scripts that install it with a Python that notes it."""

import importlib
import os
import subprocess
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(ROOT.glob("packages/*/pyproject.toml"))
GPU = {"python_version": "3.12", "python_full_version": "3.12.1", "platform_machine": "x86_64", "sys_platform": "linux"}

# Answers what the scripts ask, makes a small file for each package it is to fetch, notes what it is to install.
FAKE_PYTHON = """#!/bin/bash
all="$*" last="${@: -1}"
case "$all" in
    *version_info*) echo "${FAKE_VERSION:-3.12}" ;;
    *torch.version.cuda*) echo 13 ;;
    *torch.__version__*) echo "${FAKE_TORCH:-}" ;;
    *"version('verl')"* | *'version("verl")'*) echo "${FAKE_VERL:-}" ;;
    "-m venv "*) mkdir -p "$last/bin"; cp "$0" "$last/bin/python"; echo "venv $all" >> "$NOTES" ;;
    *--only-binary*) exit 1 ;;
    *" wheel --no-deps -w "*)
        for pin in $(grep == "$last"); do head -c 6000 /dev/urandom > "${@: -3:1}/$pin.whl"; done ;;
    *" download --no-deps --no-build-isolation "*) echo source > "${@: -3:1}/flash_attn-2.8.3.tar.gz" ;;
    *" install "*) echo "${PIP_NO_INDEX:+only $PIP_FIND_LINKS }${all#* install }" >> "$NOTES" ;;
esac
"""


def pins(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and " " not in line for line in lines)
    return dict(line.split("==") for line in lines)


def requirements_of_verl(*extras: str) -> list[Requirement]:
    """verl's requirements with these extras on the GPU machine; an extra may ask for another one."""
    found = []
    for requirement in map(Requirement, requires("verl") or []):
        if requirement.marker is None or any(requirement.marker.evaluate({**GPU, "extra": e}) for e in ("", *extras)):
            found += requirements_of_verl(*requirement.extras) if requirement.name == "verl" else [requirement]
    return found


def test_every_requirement_of_verl_is_pinned_within_its_bounds():
    lock = pins("requirements.txt") | pins("requirements/flash-attn.txt")
    wanted = requirements_of_verl("vllm", "fsdp")
    assert {"flash-attn", "torch", "vllm", "cupy-cuda13x", "tensordict"} <= {canonicalize_name(r.name) for r in wanted}
    wrong = [r for r in wanted if not r.specifier.contains(lock.get(canonicalize_name(r.name), "0"), prereleases=True)]
    assert not wrong


def test_the_lock_has_the_versions_that_were_chosen():
    lock = pins("requirements.txt")
    chosen = {"verl": "0.9.1", "torch": "2.11.0", "vllm": "0.24.0", "transformers": "5.9.0", "ray": "2.60.0"}
    chosen |= {"tensordict": "0.10.0", "transferqueue": "0.1.11", "math-verify": "0.9.0"}
    assert {name: lock[name] for name in chosen} == chosen
    assert {"ninja", "packaging", "psutil", "setuptools", "wheel", "einops"} <= lock.keys()  # flash-attn's build


def test_shared_packages_have_the_versions_that_the_tests_run_with():
    cpu, gpu = pins("requirements/cpu.txt"), pins("requirements.txt")
    differ = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert differ == {"torch", "transformers", "xgrammar", "apache-tvm-ffi"}  # pinned by verl and vLLM


@pytest.fixture
def fake(tmp_path):
    (tmp_path / "python").write_text(FAKE_PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def run(folder: Path, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    more = {"PYTHON": str(folder / "python"), "NOTES": str(folder / "notes"), "TMPDIR": str(folder), **environment}
    command = ["bash", str(ROOT / "exp_scripts" / script), *arguments]
    return subprocess.run(command, env=inherited | more, capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize(
    ("script", "arguments", "environment", "message"),
    [
        ("setup_gpu.sh", ["--nonsense"], {}, "--nonsense: setup_gpu.sh takes"),
        ("setup_gpu.sh", ["--venv"], {}, "--venv: which folder?"),
        ("setup_gpu.sh", ["--active", "--container"], {}, "exclude each other"),
        ("setup_gpu.sh", ["--active"], {}, "no environment is active"),
        ("setup_gpu.sh", ["--wheelhouse", "nowhere"], {}, "--wheelhouse nowhere: no such folder"),
        ("setup_gpu.sh", ["--wheelhouse", "."], {}, "no requirements.txt in it"),
        ("setup_gpu.sh", ["--venv", "new"], {"FAKE_VERSION": "3.11"}, "no Python 3.12 that runs"),
        ("setup_gpu.sh", ["--container"], {"FAKE_VERL": "0.8.0"}, "needs verl 0.9.1, vLLM and torch, but: 0.8.0"),
        ("wheelhouse.sh", [], {}, "which folder?"),
        ("wheelhouse.sh", ["new", "--pieces", "few"], {}, "--pieces few: must be a number of MiB"),
        ("wheelhouse.sh", ["new", "--exclude", "torhc"], {}, "--exclude torhc: not in requirements.txt"),
        ("wheelhouse.sh", ["."], {}, "not empty"),
        ("wheelhouse.sh", ["new"], {"FAKE_VERSION": "3.13"}, "no Python 3.12 that runs"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(fake, script, arguments, environment, message):
    done = run(fake, script, *arguments, **environment)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.startswith("exgrpo: ") and done.stderr.count("\n") == 1


def test_torch_first_then_the_lock_then_exgrpo(fake):
    done = run(fake, "setup_gpu.sh", "--venv", "env", "--no-flash-attn")
    assert done.returncode == 0, done.stderr
    installs = [line for line in (fake / "notes").read_text().splitlines() if not line.startswith("venv")]
    assert installs == [
        "--no-compile --no-deps torch==2.11.0",
        f"--no-compile --no-deps -r {ROOT}/requirements.txt",
        f"--no-compile --no-deps --no-build-isolation {ROOT}",
        *(f"--no-compile --no-deps --no-build-isolation {path.parent}" for path in PACKAGES),
    ]
    (left_out,) = [line for line in done.stdout.splitlines() if "flash-attn is left out" in line]
    assert "(--no-flash-attn)" in left_out and "override_config.attn_implementation=sdpa" in left_out


def test_a_compiler_of_another_cuda_is_not_tried(fake):
    toolkit = fake / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "include").mkdir()
    (toolkit / "include" / "cuda_runtime.h").touch()
    (toolkit / "bin" / "nvcc").write_text("#!/bin/sh\necho Cuda compilation tools, release 12.8, V12.8.93\n")
    (toolkit / "bin" / "nvcc").chmod(0o755)
    done = run(fake, "setup_gpu.sh", "--venv", "env", CUDA_HOME=str(toolkit))
    assert done.returncode == 0 and "is CUDA 12, torch is built for CUDA 13" in done.stdout
    (toolkit / "bin" / "nvcc").write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n")
    done = run(fake, "setup_gpu.sh", "--venv", "env", CUDA_HOME=str(toolkit), FLASH_ATTN_CUDA_ARCHS="90")
    assert "compiling flash-attn" in done.stdout and "left out" not in done.stdout
    assert f"--no-deps --no-build-isolation -r {ROOT}/requirements/flash-attn.txt" in (fake / "notes").read_text()


def test_a_wheelhouse_goes_over_in_pieces_and_is_installed_from_alone(fake):
    done = run(fake, "wheelhouse.sh", "house", "--pieces", "1", "--without-torch", "--exclude", "wandb")
    assert done.returncode == 0, done.stderr
    house, pieces = fake / "house", fake / "house" / "pieces"
    lock, gathered = pins("requirements.txt"), {file.stem.split("==")[0] for file in house.glob("*.whl")}
    missing = lock.keys() - gathered
    assert {"torch", "nvidia-cublas", "triton", "wandb"} <= missing and not {"vllm", "numpy", "ray"} & missing
    assert (house / "flash_attn-2.8.3.tar.gz").exists()
    sizes = [file.stat().st_size for file in sorted(pieces.glob("wheelhouse.tar.*"))]
    assert len(sizes) == 2 and max(sizes) == 2**20  # 240 files of 6 kB

    refused = run(fake, "setup_gpu.sh", "--venv", "env", "--wheelhouse", str(pieces), FAKE_TORCH="2.10.0+cu128")
    assert refused.returncode == 2 and "has 2.10.0+cu128; it needs torch 2.11.0" in refused.stderr
    assert {file.name for file in (pieces / "wheels").glob("*.whl")} == {file.name for file in house.glob("*.whl")}

    (fake / "notes").unlink()
    arguments = ["--venv", "env2", "--wheelhouse", str(pieces), "--no-flash-attn"]
    done = run(fake, "setup_gpu.sh", *arguments, FAKE_TORCH="2.11.0+cu130")
    assert done.returncode == 0, done.stderr
    made, *installs = (fake / "notes").read_text().splitlines()
    assert "--system-site-packages" in made
    assert len(installs) == 2 + len(PACKAGES) and all(line.startswith(f"only {pieces}/wheels ") for line in installs)


def test_a_damaged_piece_and_another_lock_are_refused(fake):
    run(fake, "wheelhouse.sh", "house", "--pieces", "1")
    pieces = fake / "house" / "pieces"
    whole = (pieces / "wheelhouse.tar.000").read_bytes()
    (pieces / "wheelhouse.tar.000").write_bytes(whole[:-1] + b"x")
    done = run(fake, "setup_gpu.sh", "--wheelhouse", str(pieces))
    assert done.returncode == 2 and "a piece is missing or damaged" in done.stderr and not (pieces / "wheels").exists()
    (fake / "house" / "requirements.txt").write_text("torch==2.10.0\n")
    done = run(fake, "setup_gpu.sh", "--wheelhouse", "house")
    assert done.returncode == 2 and "made for another requirements.txt (torch==2.10.0)" in done.stderr


def test_the_import_check_names_what_fails_and_what_differs(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "exp_scripts"))
    check = importlib.import_module("check_install")
    monkeypatch.setattr(check, "MODULES", ["json", "no_such_module"])
    monkeypatch.setattr(check, "KERNELS", ["no_such_kernel"])
    assert check.problems(driver=False) == ["no_such_module: ModuleNotFoundError: No module named 'no_such_module'"]
    assert len(check.problems(driver=True)) == 2
    monkeypatch.setattr(check, "VERL", "0.9.2")
    assert check.problems(driver=False)[1] == "verl 0.9.1: exgrpo is for 0.9.2"
    (tmp_path / "lock").write_text("# made by a == b\nverl==0.9.1\nnumpy==0.1\nno-such==1.0\n")
    monkeypatch.setattr(check, "LOCK", tmp_path / "lock")
    assert check.other_than_pinned() == [f"numpy {version('numpy')} (0.1)", "no-such not installed (1.0)"]
