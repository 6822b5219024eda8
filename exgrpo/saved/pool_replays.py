"""The log of replayed trajectories as a table: a row each, its candidates as lists.

step, question, grader       of the replay; of the trajectory, null if unknown
bucket, probability, size, drawn, chosen, tokens, reward, digest, ratio_*, group_*, advantage,
step_share
                             fields of exgrpo.experience.replay_log.LoggedReplay
candidate_step, candidate_entropy, candidate_score
                             lists, in the order of recording; `chosen` is a position in them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from exgrpo.experience.replay_log import NUMBERS, WHOLE_GROUP, Block, LoggedCandidate, ReplayLog
from exgrpo.saved.pool_content import column

if TYPE_CHECKING:
    import pyarrow as pa


def table(log: ReplayLog) -> pa.Table:
    """The log as it is saved."""
    import pyarrow as pa

    block = log.joined()
    ends = pa.array(np.cumsum([0, *block.counts], dtype=np.int32))
    columns: dict[str, Any] = {
        "question": pa.array(block.questions, pa.string()),
        "grader": pa.array(block.graders, pa.string()),
        **{name: pa.array(block.numbers[:, i]) for i, name in enumerate(NUMBERS)},
    }
    for i, name in enumerate(LoggedCandidate._fields):
        columns[f"candidate_{name}"] = pa.ListArray.from_arrays(
            ends, pa.array(block.candidates[:, i])
        )
    return pa.table(columns)


def read(saved: pa.Table) -> ReplayLog:
    """The log that `table` saved. ValueError for another table."""
    import pyarrow as pa

    if not saved.num_rows:
        return ReplayLog()
    names = [f"candidate_{name}" for name in LoggedCandidate._fields]
    lists = [column(saved, name, pa.list_(pa.float64()), False).combine_chunks() for name in names]
    counts = [np.diff(each.offsets.to_numpy()).astype(np.int32) for each in lists]
    block = Block(
        column(saved, "question", pa.string(), False).to_pylist(),
        column(saved, "grader", pa.string(), True).to_pylist(),
        np.column_stack([column(saved, each, pa.float64(), False).to_numpy() for each in NUMBERS]),
        counts[0],
        np.column_stack([each.values.to_numpy() for each in lists]),
    )
    if not all(np.array_equal(counts[0], each) for each in counts) or not counts[0].all():
        raise ValueError("candidates: of one row not as many steps as scores, or none")
    for row in block.rows():
        if not WHOLE_GROUP <= row.chosen < len(row.candidates):
            raise ValueError(f"chosen is {row.chosen} of {len(row.candidates)} candidates")
    return ReplayLog([block])
