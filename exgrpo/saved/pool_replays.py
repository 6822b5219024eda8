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

from exgrpo.experience.replay_log import NUMBERS, Block, LoggedCandidate, ReplayLog

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
    """The log that `table` saved."""
    if not saved.num_rows:
        return ReplayLog()
    lists = [saved[f"candidate_{name}"].combine_chunks() for name in LoggedCandidate._fields]
    block = Block(
        saved["question"].to_pylist(),
        saved["grader"].to_pylist(),
        np.column_stack([saved[name].to_numpy() for name in NUMBERS]),
        np.diff(lists[0].offsets.to_numpy()).astype(np.int32),
        np.column_stack([each.values.to_numpy() for each in lists]),
    )
    return ReplayLog([block])
