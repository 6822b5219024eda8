"""Read input files in verl's parquet schema into the distinct questions of each benchmark."""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exgrpo.gold_answers import golds_of

COLUMNS = ("data_source", "prompt", "reward_model")


@dataclass(frozen=True)
class Question:
    """A distinct question of a benchmark: `index` is its number there, from 0, in the order of the
    files.

    `repeats`: the samples that a file asks for, by that many equal rows or by extra_info.samples.
    `grader`: "letter" for multiple choice, None if the benchmark's name says which grader it needs.
    `cluster`: the name of the question's cluster (eval/estimate/estimates.py), from extra_info;
    None if it has none.
    `left_out`: whether its system message was.
    `answers`: all that count, where there are several; `answer` is the first.
    """

    benchmark: str
    index: int
    question_id: str
    messages: tuple[dict[str, str], ...]
    answer: str
    input_file: str
    repeats: int
    grader: str | None = None
    cluster: str | None = None
    left_out: bool = False
    answers: tuple[str, ...] = ()


def expand(patterns: Sequence[str], flag: str = "--input_file") -> list[Path]:
    """The files that match paths and globs, each once, those of a glob sorted by name.

    Raises:
        FileNotFoundError: a path or glob matches no file; the message names it.
    """
    files: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        names = [str(path)] if path.is_file() else sorted(glob.glob(str(path), recursive=True))
        paths = [Path(name) for name in names if Path(name).is_file()]
        if not paths:
            raise FileNotFoundError(f"{flag}={pattern}: no such file")
        files.update(dict.fromkeys(paths))
    return list(files)


def read(files: Sequence[Path], *, remove_system: bool, limit: int | None) -> list[Question]:
    """The distinct questions of the files, benchmark by benchmark.

    Questions are equal if messages and ground truth are; one that is in several files is taken from
    the first.

    Args:
        remove_system: drop a leading system message.
        limit: take only this many questions of each benchmark, the first ones; None for all.

    Raises:
        ValueError: the message names the file and what is missing.
    """
    benchmarks: dict[str, dict[str, Question]] = {}
    for file in files:
        rows = [_question(row, file, remove_system) for row in _rows(file)]
        keys = [json.dumps([row.benchmark, row.messages, row.answer, row.answers]) for row in rows]
        repeats = Counter(keys)
        for row, key in zip(rows, keys, strict=True):
            questions = benchmarks.setdefault(row.benchmark, {})
            if key not in questions:
                questions[key] = replace(
                    row, index=len(questions), repeats=max(row.repeats, repeats[key])
                )
    return [
        question
        for by_key in benchmarks.values()
        for question in _even(list(by_key.values()))[:limit]
    ]


def in_order(files: Sequence[Path]) -> list[Question]:
    """The question of each row of the files, repeated ones too, without system messages; ValueError
    as for `read`.
    """
    return [_question(row, file, remove_system=True) for file in files for row in _rows(file)]


def _even(questions: list[Question]) -> list[Question]:
    """The questions, all with the lowest number of repeats: an accidental duplicate row does not
    add samples.
    """
    repeats = min(question.repeats for question in questions)
    return [replace(question, repeats=repeats) for question in questions]


def _rows(file: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(file).names
        missing = [column for column in COLUMNS if column not in names]
        if missing:
            raise ValueError(f"no column {', '.join(missing)}; it has {', '.join(names)}")
        columns = [*COLUMNS, *(["extra_info"] if "extra_info" in names else [])]
        rows: list[dict[str, Any]] = pq.read_table(file, columns=columns).to_pylist()
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise ValueError(f"--input_file={file}: {_first_line(error)}") from error
    if not rows:
        raise ValueError(f"--input_file={file}: no rows")
    for number, row in enumerate(rows):
        if fault := _fault(row):
            raise ValueError(f"--input_file={file}: row {number}: {fault}")
    return rows


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _fault(row: dict[str, Any]) -> str | None:
    """What is wrong with a row; None if it can be used."""
    prompt, reward = row["prompt"], row["reward_model"]
    if not isinstance(row["data_source"], str) or not row["data_source"]:
        return f"data_source={row['data_source']!r}: must be the name of a benchmark"
    if not isinstance(prompt, list) or not all(
        isinstance(turn, dict)
        and isinstance(turn.get("role"), str)
        and isinstance(turn.get("content"), str)
        for turn in prompt
    ):
        return "prompt: must be a list of messages with role and content"
    if not prompt or prompt[-1]["role"] != "user":
        return "prompt: must end with a message of the user"
    golds = golds_of(reward.get("ground_truth")) if isinstance(reward, dict) else []
    if not golds or not all(golds):
        return "reward_model: must have a ground_truth"
    return None


def _question(row: dict[str, Any], file: Path, remove_system: bool) -> Question:
    from exgrpo.experience.question_id import (
        row_question_id,
    )  # NumPy with it, which --help does without

    messages = [{"role": turn["role"], "content": turn["content"]} for turn in row["prompt"]]
    left_out = remove_system and messages[0]["role"] == "system"
    if left_out:
        messages = messages[1:]
    extra = row.get("extra_info") or {}
    stored_id, samples, cluster = (
        extra.get("question_id"),
        extra.get("samples"),
        extra.get("cluster"),
    )
    golds = golds_of(row["reward_model"]["ground_truth"])
    # other data sets may number their questions under this name
    is_hash = isinstance(stored_id, str) and re.fullmatch("[0-9a-f]{32}", stored_id)
    return Question(
        benchmark=row["data_source"],
        index=0,
        question_id=row_question_id({"question_id": stored_id} if is_hash else None, messages),
        messages=tuple(messages),
        answer=golds[0],
        input_file=str(file),
        repeats=samples if isinstance(samples, int) else 1,
        grader="letter" if extra.get("grader") == "letter" else None,
        cluster=cluster if isinstance(cluster, str) and cluster else None,
        left_out=left_out,
        answers=tuple(golds) if len(golds) > 1 else (),
    )
