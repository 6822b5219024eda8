"""Import what a GPU run imports, in this Python, and print the versions: ``python exp_scripts/check_install.py``.

Needs no GPU. Without NVIDIA's driver library, libcuda.so.1, vLLM's compiled kernels cannot be loaded; that is said, and
everything else is imported. One line for each module that fails; exit status 1 then.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VERL = "0.9.1"
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
    "vllm.v1.attention.backends.flashinfer",
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
    "wandb",
]
# compiled against NVIDIA's driver; vllm.vllm_flash_attn holds vLLM's own flash attention
KERNELS = ["vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch", "vllm.cumem_allocator", "vllm.vllm_flash_attn"]


def installed(package: str) -> str:
    """Version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def has_driver() -> bool:
    """Whether NVIDIA's driver library can be loaded, which is the driver's own and in no package."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def failure(module: str) -> str | None:
    """Import a module; what went wrong, in one line, or None."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # a package may exit, too
        return f"{module}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def other_than_pinned() -> list[str]:
    """Packages whose version is another than the lock's, as in a container or an environment used before."""
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    found = {name: installed(name) for name in pins}
    wrong = [name for name in pins if found[name].split("+")[0] != pins[name].split("+")[0]]
    return [f"{name} {found[name]} ({pins[name]})" for name in wrong]


def problems(driver: bool) -> list[str]:
    """Every module that does not import, and another verl."""
    found = [text for module in MODULES + (KERNELS if driver else []) if (text := failure(module)) is not None]
    if installed("verl") != VERL:
        found.append(f"verl {installed('verl')}: exgrpo is for {VERL}")
    return found


def main() -> None:
    """Versions, then what is wrong."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    print(f"python {sys.version.split()[0]}, " + ", ".join(f"{name} {installed(name)}" for name in SHOWN))
    if (different := other_than_pinned()) and len(different) <= 20:
        print("other than pinned: " + ", ".join(different))
    elif different:
        print(f"other than pinned: {len(different)} packages")
    driver = has_driver()
    if not driver:
        print(f"no NVIDIA driver here (libcuda.so.1): not loaded: {', '.join(KERNELS)}")
    wrong = problems(driver)
    for text in wrong:
        print(f"exgrpo: {text}", file=sys.stderr)
    if driver:
        print(f"torch sees {importlib.import_module('torch').cuda.device_count()} GPUs")
    if wrong:
        sys.exit(1)
    print(f"all {len(MODULES) + (len(KERNELS) if driver else 0)} modules import")


if __name__ == "__main__":
    main()
