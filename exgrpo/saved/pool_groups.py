"""The past groups of exp_unit=group as a table: a row each rollout, those of a group together, the
oldest group first.

serial, question, stored, prompt: of the group, its number from 0, its question, the step whose
rollouts they are, the tokens of its prompt (null if they were not recorded)
step, entropy, tokens, log_probs, loss_mask, reward, note, grader: of the rollout, as in the pool's
segments
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.packing import unpack
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved import pool_content, pool_segments

_AT_ONCE = 64  # groups in a row group of the file
_OF_GROUP = ("question", "stored", "prompt")


def write(path: Path, groups: Iterable[StoredGroup]) -> None:
    """Write the table."""
    import pyarrow as pa

    of_group = {"stored": pa.int64(), "prompt": pa.list_(pa.int32())}
    numbered = enumerate(groups)
    with pool_segments.writer(path, of_group) as out:
        while some := list(itertools.islice(numbered, _AT_ONCE)):
            rows = [
                (number, group, rollout) for number, group in some for rollout in group.rollouts
            ]
            columns = pool_segments.columns(
                [(number, group.question, rollout) for number, group, rollout in rows]
            )
            columns.append(pa.array([group.step for _, group, _ in rows], of_group["stored"]))
            columns.append(pa.array([group.prompt for _, group, _ in rows], of_group["prompt"]))
            out.write_table(pa.Table.from_arrays(columns, names=out.schema.names))


def read(content: bytes, count: int) -> list[StoredGroup]:
    """The groups in a file that `write` has written, `count` of them. ValueError for others."""
    rollouts: list[list[Trajectory]] = [[] for _ in range(count)]
    facts: dict[int, tuple[str, int, Any]] = {}
    for batch in pool_segments.batches(content):
        pool_content.check_rows(batch)
        for row, serial in enumerate(batch.column("serial").to_pylist()):
            if serial not in facts:
                question, stored, prompt = (batch.column(name)[row].as_py() for name in _OF_GROUP)
                facts[serial] = question, stored, prompt
        for serial, _, packed in pool_segments.packed_records(batch, np.arange(count)):
            rollouts[serial].append(unpack(packed))
    if facts.keys() != set(range(count)):
        raise ValueError(f"{len(facts)} groups, {count} were saved")
    return [_group(*facts[serial], rollouts[serial]) for serial in range(count)]


def _group(
    question: str, stored: int, prompt: Sequence[int] | None, rollouts: Sequence[Trajectory]
) -> StoredGroup:
    tokens = None if prompt is None else np.array(prompt, np.int32)
    return StoredGroup(question, stored, tuple(rollouts), tokens)
