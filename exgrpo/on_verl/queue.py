"""The only file that uses TransferQueue, through which verl's V1 trainer passes rows between processes.

Does not import verl, so that the queue can start while verl is being imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

Batch: TypeAlias = KVBatchMeta  # keys and tags of rows in a partition of the queue


def start(config: DictConfig) -> None:
    """Start the queue with the same settings as verl's runner would; the runner then attaches to it."""
    settings = OmegaConf.create(OmegaConf.to_container(config.transfer_queue, resolve=True))
    settings.enable = True
    tq.init(settings)


def read(keys: Sequence[str], partition: str, fields: Sequence[str] | None = None) -> TensorDict:
    """These fields of rows; default: all fields. A call costs 10 ms."""
    select: dict[str, Any] = {} if fields is None else {"select_fields": list(fields)}
    return tq.kv_batch_get(keys=list(keys), partition_id=partition, **select)


def write(
    keys: Sequence[str], partition: str, fields: TensorDict, tags: Sequence[dict[str, Any]] | None = None
) -> Batch:
    """Write fields of rows, with tags for new rows. A field that only some rows have is missing when all are read."""
    with_tags: dict[str, Any] = {} if tags is None else {"tags": list(tags)}
    return tq.kv_batch_put(keys=list(keys), partition_id=partition, fields=fields, **with_tags)


def clear(keys: Sequence[str], partition: str) -> None:
    """Drop rows."""
    tq.kv_clear(keys=list(keys), partition_id=partition)


def prompts(partition: str) -> set[str]:
    """uids of the prompts whose groups are being generated or wait to be sampled."""
    rows = (tq.kv_list(partition) or {}).get(partition, {})
    return {uid for uid, tag in rows.items() if tag.get("is_prompt")}
