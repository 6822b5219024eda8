"""The only file that uses TransferQueue, by which verl's V1 trainer passes rows on.

Does not import verl, so that the queue can start while verl is being imported.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

# TransferQueue's names of its actor in a Ray
CONTROLLER, NAMESPACE = "TransferQueueController", "transfer_queue"
STORAGE = "TransferQueueStorageUnit"  # and a number
Batch: TypeAlias = KVBatchMeta  # keys and tags of rows in a partition of the queue


def start(config: DictConfig, patience_s: float = 60) -> None:
    """Start the queue with verl's settings; verl's runner then attaches to it.

    Args:
        patience_s: how long the queue of a training that has just ended may take to leave this Ray.

    Raises:
        RuntimeError: another training uses it, and would write the same rows.
    """
    deadline = time.monotonic() + patience_s
    while _is_there():
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"exgrpo: this Ray has a {CONTROLLER} already, that of another training; two "
                "trainings in one Ray would mix their rollouts: end the other one, or give this "
                "one a Ray cluster of its own"
            )
        time.sleep(0.5)
    settings = OmegaConf.create(OmegaConf.to_container(config.transfer_queue, resolve=True))
    settings.enable = True
    tq.init(settings)


def _is_there() -> bool:
    with contextlib.suppress(ValueError):
        ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        return True
    return False


def read(keys: Sequence[str], partition: str, fields: Sequence[str] | None = None) -> TensorDict:
    """These fields of rows; default: all fields. A call costs 10 ms."""
    select: dict[str, Any] = {} if fields is None else {"select_fields": list(fields)}
    return tq.kv_batch_get(keys=list(keys), partition_id=partition, **select)


def write(
    keys: Sequence[str],
    partition: str,
    fields: TensorDict | None,
    tags: Sequence[dict[str, Any]] | None = None,
) -> Batch:
    """Write fields of rows, with tags for new rows. A field that some lack is not read.

    Args:
        fields: None for a prompt, which has a tag alone.
    """
    with_tags: dict[str, Any] = {} if tags is None else {"tags": list(tags)}
    return tq.kv_batch_put(keys=list(keys), partition_id=partition, fields=fields, **with_tags)


def clear(keys: Sequence[str], partition: str) -> None:
    tq.kv_clear(keys=list(keys), partition_id=partition)


def without(batch: Batch, gone: Collection[str]) -> Batch:
    """The batch without these of its rows, which are dropped from the queue."""
    if not gone:
        return batch
    clear(sorted(gone), batch.partition_id)
    return batch.select_keys([key for key in batch.keys if key not in gone])


def prompts(partition: str) -> set[str]:
    """uids of the prompts whose groups are being generated or wait to be sampled."""
    rows = (tq.kv_list(partition) or {}).get(partition, {})
    return {uid for uid, tag in rows.items() if tag.get("is_prompt")}


async def rollouts() -> tuple[set[str], int]:
    """Keys of the rollouts that are there, of all partitions, and how many prompts are out."""
    listed = await tq.async_kv_list() or {}
    rows = [(key, tag) for partition in listed.values() for key, tag in partition.items()]
    there = {key for key, tag in rows if not tag.get("is_prompt")}
    return there, sum(tag.get("status") in ("pending", "running") for _, tag in rows)


def actors_of_run() -> list[tuple[str, str]]:
    """Name and namespace of each named Ray actor of this training: verl names all of its own."""
    spaces = (NAMESPACE, ray.get_runtime_context().namespace)
    named = ray.util.list_named_actors(all_namespaces=True)
    return [(each["name"], each["namespace"]) for each in named if each["namespace"] in spaces]


def split_key(key: str) -> tuple[str, int, int]:
    """The parts of a rollout's key ``{uid}_{session}_{output}``, as verl's agent loop writes it."""
    uid, session, output = key.rsplit("_", 2)
    return uid, int(session), int(output)


def in_order(batch: Batch) -> Batch:
    """The batch in the order of prompts and sessions, in whatever order generation finished."""
    batch.reorder(sorted(range(len(batch)), key=lambda i: split_key(batch.keys[i])))
    return batch


def of_response(row: torch.Tensor, length: int) -> npt.NDArray[np.float32]:
    """The response's entries, [T], of a row [P+T] of the actor's pass: each is one early."""
    return row[-length - 1 : -1].float().numpy()
