"""Whether the machine, or the Ray that is joined, is large enough: verl waits for ever."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


def verify(config: DictConfig, environment: Mapping[str, str]) -> None:
    """ValueError if a Ray that this command starts would be too small.

    Args:
        environment: of the command; it may name a Ray to join.
    """
    if not starts_ray(config, environment):
        return
    ray_init = config.ray_kwargs.ray_init
    cpus, gpus = ray_init.get("num_cpus"), ray_init.get("num_gpus")
    verify_cpus(config, (os.cpu_count() or 1) if cpus is None else cpus)
    if config.trainer.device == "cuda" and gpus is None:
        import torch  # verl is about to import it

        verify_gpus(config, torch.cuda.device_count())


def starts_ray(config: DictConfig, environment: Mapping[str, str]) -> bool:
    """Whether the command starts a Ray of its own, by the rules of ``ray.init``."""
    ray_init = config.ray_kwargs.ray_init
    address = ray_init.get("address")
    if address is not None:
        return bool(address == "local")
    base = environment.get("RAY_TMPDIR", environment.get("TMPDIR", "/tmp"))
    started = Path(base, "ray", "ray_current_cluster")
    return not environment.get("RAY_ADDRESS") and not started.exists()


def verify_cpus(config: DictConfig, cpus: float) -> None:
    """ValueError if a Ray with so many CPUs is too small for what waits for them.

    verl holds 3 for each GPU of its pools and 2 for each of a rollout server of its own, and an
    actor that asks for none needs one that is free where it starts.
    """
    backend = config.transfer_queue.backend
    simple = backend.storage_backend == "SimpleStorage"
    units = backend.SimpleStorage.num_data_storage_units if simple else 0
    workers = 3 * _gpus(config.trainer) + 2 * _gpus_of_servers(config)
    needed = units + 1 + workers + 1
    if cpus < needed:
        raise ValueError(
            f"{_UNITS}={units}: Ray has {cpus:g} CPUs, must have {needed}: {units} for these, 1 "
            f"for the queue's controller, {workers} for the GPU workers, 1 free; fewer units, or "
            f"a ray_kwargs.ray_init.num_cpus={needed} that is more than the machine has"
        )


def verify_gpus(config: DictConfig, gpus: int) -> None:
    """ValueError if a machine with so many GPUs has too few for the run."""
    trainer, servers = config.trainer, _gpus_of_servers(config)
    needed = _gpus(trainer) + servers
    if gpus < needed:
        more = f" + {servers} of actor_rollout_ref.rollout's servers" if servers else ""
        raise ValueError(
            f"trainer.nnodes={trainer.nnodes} trainer.n_gpus_per_node={trainer.n_gpus_per_node}"
            f"{more}: must be at most the {gpus} GPUs of this machine, the whole of the Ray that "
            "this command starts; for more, join a Ray cluster (RAY_ADDRESS)"
        )


def _gpus(node: DictConfig) -> int:
    return int(node.nnodes * node.n_gpus_per_node)


def _gpus_of_servers(config: DictConfig) -> int:
    mode = config.trainer.v1.trainer_mode
    separate = str(mode).endswith("separate_async")
    return _gpus(config.actor_rollout_ref.rollout) if separate else 0
