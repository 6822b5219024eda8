"""The tables of a saved pool, each written by one function and read by another.

live.parquet, questions.parquet, history.parquet: their columns are in exgrpo.saved.pool_files.

replayed.parquet, a row each replayed trajectory, its candidates as lists:
step, question, grader       of the replay; of the trajectory, null if unknown
bucket, probability, size, drawn, chosen, tokens, reward, digest, ratio_*, group_*, advantage,
step_share
                             fields of exgrpo.experience.replay_log.LoggedReplay
candidate_step, candidate_entropy, candidate_score
                             lists, in the order of recording; `chosen` is a position in them

groups.parquet, a row each rollout, those of a group together, the oldest group first:
serial, question, stored, prompt
                             of the group: its number from 0, its question, the step whose rollouts
                             they are, the tokens of its prompt (null if they were not recorded)
step, entropy, tokens, log_probs, loss_mask, reward, note, grader
                             of the rollout, as in the pool's segments

memory.parquet, a row each question: question, and the columns of
exgrpo.experience.question_memory as numbers.

A table that holds something else raises ValueError or TypeError, naming the column.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exgrpo.experience.experience_bucket_manager import BucketState
from exgrpo.experience.group_buffer import StoredGroup
from exgrpo.experience.packing import unpack
from exgrpo.experience.question_memory import COLUMNS, QuestionMemory
from exgrpo.experience.replay_log import NUMBERS, Block, LoggedCandidate, ReplayLog
from exgrpo.experience.replayed_group import WHOLE_GROUP
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved import pool_segments
from exgrpo.saved.pool_segments import column

if TYPE_CHECKING:
    import pyarrow as pa

_AT_ONCE = 64  # groups in a row group of the file
_OF_GROUP = ("question", "stored", "prompt")


def write_live(path: Path, serials: npt.NDArray[np.int64]) -> None:
    """The trajectories in the pool, in the order of recording."""
    _write(path, {"serial": serials}, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")


def read_live(live: pa.Table) -> npt.NDArray[np.int64]:
    """The serials: ascending, none twice."""
    import pyarrow as pa

    serials: npt.NDArray[np.int64] = column(live, "serial", pa.int64(), False).to_numpy()
    if (np.diff(serials, prepend=-1) <= 0).any():
        raise ValueError("column serial does not ascend")
    return serials


def write_questions(path: Path, state: BucketState, retired_bucket: int) -> None:
    """The questions; `retired_bucket` is K."""
    import pyarrow as pa

    kept, retired = len(state.questions), len(state.retired)
    values = (
        [*state.questions, *state.retired],
        [*state.buckets, *[retired_bucket] * retired],
        [*state.positions, *[-1] * retired],
        [*[False] * kept, *[True] * retired],
    )
    kinds = _of_questions().items()
    columns = {name: pa.array(each, kind) for (name, kind), each in zip(kinds, values, strict=True)}
    _write(path, columns, compression="zstd", use_dictionary=False)


def read_questions(questions: pa.Table) -> BucketState:
    """The questions; which buckets there are and their order is not checked."""
    names, buckets, positions, retired = (
        column(questions, name, kind, False).to_pylist() for name, kind in _of_questions().items()
    )
    kept = len(names) - sum(retired)
    if any(retired[:kept]) or len(set(names)) != len(names) or "" in names:
        raise ValueError("questions: one is twice there, empty, or not where retired ones are")
    return BucketState(names[:kept], buckets[:kept], positions[:kept], names[kept:])


def _of_questions() -> dict[str, pa.DataType]:
    import pyarrow as pa

    kinds = {"question": pa.string(), "bucket": pa.int32(), "position": pa.int64()}
    return kinds | {"retired": pa.bool_()}


def write_history(path: Path, history: Sequence[Mapping[str, float]]) -> None:
    """The metrics of each step, a row each; null where a step has none of that name."""
    import pyarrow as pa

    names = sorted({name for row in history for name in row} | {"step"})
    columns = {name: pa.array([row.get(name) for row in history], pa.float64()) for name in names}
    _write(path, columns, compression="zstd")


def read_history(history: pa.Table) -> list[dict[str, float]]:
    import pyarrow as pa

    for name in {"step", *history.column_names}:
        column(history, name, pa.float64(), nulls=name != "step")
    rows = history.to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def write_replays(path: Path, log: ReplayLog) -> None:
    """The log of what was replayed."""
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
    _write(path, columns, compression="zstd")


def read_replays(saved: pa.Table) -> ReplayLog:
    """The log of what was replayed."""
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


def write_memory(path: Path, memory: QuestionMemory) -> None:
    """What is remembered of each question."""
    questions = memory.questions()
    known = memory.columns(questions).T
    _write(path, {"question": questions, **dict(zip(COLUMNS, known, strict=True))})


def read_memory(saved: pa.Table) -> tuple[list[str], npt.NDArray[np.float64]]:
    """The questions, and [n, COLUMNS] of them."""
    import pyarrow as pa

    questions = column(saved, "question", pa.string(), False).to_pylist()
    if len(set(questions)) != len(questions):
        raise ValueError("memory: a question is twice there")
    known = [column(saved, name, pa.float64(), False).to_numpy() for name in COLUMNS]
    return questions, np.column_stack(known)


def _write(path: Path, columns: Mapping[str, Any], **options: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, **options)


def write_groups(path: Path, groups: Iterable[StoredGroup]) -> None:
    import pyarrow as pa

    of_group = {"stored": pa.int64(), "prompt": pa.list_(pa.int32())}
    numbered = enumerate(groups)
    with pool_segments.writer(path, of_group) as out:
        while some := list(itertools.islice(numbered, _AT_ONCE)):
            rows = [(number, group, each) for number, group in some for each in group.rollouts]
            records = [(number, group.question, each) for number, group, each in rows]
            columns = pool_segments.columns(records)
            columns.append(pa.array([group.step for _, group, _ in rows], of_group["stored"]))
            columns.append(pa.array([group.prompt for _, group, _ in rows], of_group["prompt"]))
            out.write_table(pa.Table.from_arrays(columns, names=out.schema.names))


def read_groups(content: bytes, count: int) -> list[StoredGroup]:
    """The groups in a file of `count`; `content` is its bytes."""
    rollouts: list[list[Trajectory]] = [[] for _ in range(count)]
    facts: dict[int, tuple[str, int, Any]] = {}
    for batch in pool_segments.batches(content):
        pool_segments.check_rows(batch)
        for row, serial in enumerate(batch.column("serial").to_pylist()):
            if serial not in facts:
                question, stored, prompt = (batch.column(name)[row].as_py() for name in _OF_GROUP)
                facts[serial] = question, stored, prompt
        for serial, _, packed in pool_segments.packed_records(batch, np.arange(count)):
            rollouts[serial].append(unpack(packed))
    if facts.keys() != set(range(count)):
        raise ValueError(f"{len(facts)} groups, {count} were saved")
    groups = []
    for serial, (question, stored, prompt) in sorted(facts.items()):
        tokens = None if prompt is None else np.array(prompt, np.int32)
        groups.append(StoredGroup(question, stored, tuple(rollouts[serial]), tokens))
    return groups
