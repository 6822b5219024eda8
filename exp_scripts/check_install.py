"""Import what a GPU run imports and print versions: ``python exp_scripts/check_install.py``.

Needs no GPU. Without NVIDIA's driver library, libcuda.so.1, vLLM's compiled kernels cannot be
loaded; that is said, and everything else is imported. Where there is a GPU, one kernel of torch and
one of Triton run on it. One line for each thing that fails; exit status 1 then. ``--machine 13``:
what can be known before the stack for CUDA 13 (or 12) is installed: the driver's version, and what
Triton compiles its kernels with.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DRIVERS = {12: 525, 13: 580}  # CUDA that torch is built for -> its first driver
LOCK = Path(__file__).parents[1] / "requirements.txt"

SHOWN = [
    "torch",
    "vllm",
    "transformers",
    "verl",
    "ray",
    "tensordict",
    "TransferQueue",
    "flashinfer-python",
    "flash-attn",
]
SHOWN += ["math-verify", "numpy", "pandas", "pyarrow", "exgrpo"]

MODULES = [
    # the rollout: vLLM's server, its GPU worker, and verl's server around them
    "torch",
    "transformers",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.attention.backends.flash_attn",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    # the actor
    "verl.workers.engine.fsdp",
    "verl.workers.engine_workers",
    "exgrpo.on_verl.mix_actor",
    # the driver, the queue, the reward
    "ray",
    "transfer_queue",
    "verl.experimental.agent_loop",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1.trainer_sync",
    "exgrpo.main_mix_ppo",
    "exgrpo.mix_trainer_experience",
    "exgrpo.on_verl.agent_loop",
    "math_verify",
    "exgrpo.math_verify_reward",
    "math_verify_rules",
    "tensorboard",
]
# package -> what needs it, and what goes without it; wheelhouse.sh --minimal has none of them
OPTIONAL = {
    "flashinfer-python": (
        "vllm.v1.attention.backends.flashinfer",
        "run with VLLM_USE_FLASHINFER_SAMPLER=0",
    ),
    "wandb": ("wandb", "trainer.logger must not name it"),
}
# compiled against NVIDIA's driver; vllm.vllm_flash_attn holds vLLM's own flash attention
KERNELS = [
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.cumem_allocator",
    "vllm.vllm_flash_attn",
]


def installed(package: str) -> str:
    """Version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def has_driver() -> bool:
    """Whether NVIDIA's driver library can be loaded, which is in no package."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def drivers() -> list[str]:
    """The driver's version, once for each of the machine's GPUs."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(
            query, capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []


def driver_problem(cuda: int) -> str | None:
    """Why this machine's driver cannot run a stack for `cuda`; None if it can, or without one."""
    needed = DRIVERS[cuda]
    found = next(iter(drivers()), str(needed))
    number = found.split(".")[0]
    if not number.isdigit() or int(number) >= needed or _cuda_of_driver() >= cuda:
        return None
    return f"NVIDIA driver {found}: must be {needed} or newer, for CUDA {cuda}" + (
        "; older ones take setup_gpu.sh --cuda 12 or, on data-centre GPUs, NVIDIA's package "
        "cuda-compat-13-0, which verl's container has"
        if int(number) >= DRIVERS[12]
        else ""
    )


def _cuda_of_torch() -> int:
    """The major CUDA that the installed torch is built for; the registry's is for 13."""
    return 12 if "+cu12" in installed("torch") else 13


def _cuda_of_driver() -> int:
    """The newest CUDA of the driver library, which cuda-compat replaces; 0 without."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value // 1000


def compiler_problems() -> list[str]:
    """What is missing for Triton's first kernel, a small C module of this Python."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "clang")), None)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    wrong = (
        []
        if compiler
        else ["no C compiler (gcc, clang or CC): Triton compiles its first kernel with it"]
    )
    if not header.is_file():
        wrong.append(
            f"{header}: no such file; Triton's first kernel needs it (python3.12-dev or "
            "python3.12-devel)"
        )
    return wrong


def machine_problems(cuda: int) -> list[str]:
    """What no package can mend; without a driver, which may be elsewhere, only said."""
    wrong = compiler_problems()
    if has_driver() or not wrong:
        return wrong + ([problem] if (problem := driver_problem(cuda)) else [])
    print(f"no NVIDIA driver here; on the machine with GPUs: {'; '.join(wrong)}")
    return []


def failure(module: str) -> str | None:
    """Import a module; what went wrong, in one line, or None."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # a package may exit, too
        return f"{module}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def other_than_pinned() -> list[str]:
    """Packages whose version is another than the lock's, as in a container."""
    found = {name: (pin, installed(name)) for name, pin in _pins().items()}
    wrong = {
        name: both for name, both in found.items() if both[1].split("+")[0] != both[0].split("+")[0]
    }
    return [f"{name} {there} ({pin})" for name, (pin, there) in wrong.items()]


def _pins() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def problems(driver: bool) -> list[str]:
    """Every module that does not import, another verl, and the first kernel that fails."""
    wanted = MODULES + [
        module for name, (module, _) in OPTIONAL.items() if installed(name) != "not installed"
    ]
    found = [
        text
        for module in wanted + (KERNELS if driver else [])
        if (text := failure(module)) is not None
    ]
    if installed("verl") != (required := _pins()["verl"]):
        found.append(f"verl {installed('verl')}: exgrpo is for {required}")
    if not found and driver and drivers() and (text := kernel_failure()):
        found.append(text)
    return found


def kernel_failure() -> str | None:
    """Run the first kernels; what went wrong, in one line, or None."""
    try:
        importlib.import_module("first_kernel").run()
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        return f"the first kernel on the GPU: {type(error).__name__}: {said}"
    return None


def main() -> None:
    """Versions, then what is wrong."""
    if sys.argv[1:2] == ["--machine"]:
        _end_with(machine_problems(int(sys.argv[2])))
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    print(
        f"python {sys.version.split()[0]}, "
        + ", ".join(f"{name} {installed(name)}" for name in SHOWN)
    )
    if (different := other_than_pinned()) and len(different) <= 20:
        print("other than pinned: " + ", ".join(different))
    elif different:
        print(f"other than pinned: {len(different)} packages")
    for name, (_, instead) in OPTIONAL.items():
        if installed(name) == "not installed":
            print(f"without {name}: {instead}")
    driver = has_driver()
    if not driver:
        print(f"no NVIDIA driver here (libcuda.so.1): not loaded: {', '.join(KERNELS)}")
    wrong = machine_problems(_cuda_of_torch()) + problems(driver)
    if driver:
        gpus = importlib.import_module("torch").cuda.device_count()
        print(
            f"torch sees {gpus} GPUs"
            + (", and a kernel of torch and one of Triton ran" if gpus and not wrong else "")
        )
    _end_with(wrong)
    print("all modules import")


def _end_with(wrong: list[str]) -> None:
    for text in wrong:
        print(f"exgrpo: {text}", file=sys.stderr)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
