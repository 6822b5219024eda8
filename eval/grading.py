"""Verdicts on generated rows: Math-Verify and the full grader (docs/grading.md), letters for multiple choice, and on
request a second grader.

Mathematics is judged in processes of their own, as the training reward is (exgrpo.math_verify_reward): an answer that
hangs or crashes costs itself alone. The limit is on computing time, so a busy machine changes no verdict.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from eval import benchmark_files
from eval.extraction import DIGITS, LETTERS, boxed, choice
from exgrpo.gold_answers import clean, latex_forms
from exgrpo.math_verify_reward import FULL_GRADER, Verifier, judged_part

CHOICE_BENCHMARKS = tuple(name for name, known in benchmark_files.known().items() if known.grader == "letter")
CPU_S = 2.0  # of computing for one answer; the slowest of 6,345 real ones took 0.5
WALL_S = 60.0  # on the clock, for one that sleeps
WORTH_A_START = 100  # answers that take Math-Verify as long as another process takes to start
WORTH_A_SECOND_START = 5_000  # the same of the second grader, which imports verl
VERDICT_KEYS = ("correct", "extracted", "vote", "rule", "timed_out", "math_verify_correct", "oat_correct")
SECOND_GRADER = Path(__file__).with_name("second_grader.py")

Row = dict[str, Any]
Job = tuple[str, str]  # gold, answer
Reply = dict[str, Any]  # of exgrpo.math_verify_worker.serve
_NOTHING: Reply = {"correct": False, "extracted": None, "vote": None, "rule": None}


def grade(
    rows: Sequence[Row],
    *,
    oat: bool = False,
    any_true: bool = False,
    require_think: bool = False,
    processes: int | None = None,
) -> list[Row]:
    """The rows in the same order, with their verdicts; those of an earlier grading are dropped.

    Each gets ``correct``; ``extracted``, the answer as it was read, None where none was found; ``vote``, what equal
    answers share; ``rule``, what makes it right for the full grader ("math_verify", "intervals", "letter"), None where
    it is wrong for that, too; ``timed_out``, whether judging was given up. A
    response that was cut off is wrong and has no answer.

    A row with ``grader`` "letter" is multiple choice, as are the benchmarks of CHOICE_BENCHMARKS.

    Args:
        oat: judge by the second grader too: ``oat_correct`` (None for multiple choice) and ``math_verify_correct``.
        any_true: then ``correct`` is what either grader calls right.
        require_think: what counts is what follows the first </think>, as in training, and without one the answer is
            wrong.
        processes: that judge at a time, of each grader; as many as there are cores.

    Raises:
        ValueError: a multiple-choice answer that is no letter, a row without response, or no second grader installed.
        OSError: a grader's process does not start.
    """
    check(rows, oat=oat)
    jobs = [_job(row, require_think) for row in rows]
    mathematics = [job for row, job in zip(rows, jobs, strict=True) if job[1] and not _is_choice(row)]
    distinct = list(dict.fromkeys(mathematics))
    first = _judge(distinct, latex_forms, _full_grader, _count(distinct, processes, WORTH_A_START))
    second = {}
    if oat:
        second = _judge(distinct, _plain_forms, _second_grader, _count(distinct, processes, WORTH_A_SECOND_START))
    graded = []
    for row, job in zip(rows, jobs, strict=True):
        verdict = _judge_choice(*job) if _is_choice(row) else first.get(job, _NOTHING)
        ungraded = {key: value for key, value in row.items() if key not in VERDICT_KEYS}
        graded.append(ungraded | _verdict(verdict))
        if oat:
            _add_second(graded[-1], second.get(job, _NOTHING), any_true)
    return graded


def _is_choice(row: Mapping[str, Any]) -> bool:
    return row.get("grader") == "letter" or row["benchmark"] in CHOICE_BENCHMARKS


def _job(row: Row, require_think: bool) -> Job:
    """The gold answer and the part of the response that counts; none of it where it was cut off."""
    cut_off = row["finish_reason"] == "length"
    return row["answer"], "" if cut_off else judged_part(row["response"], require_think)


def check(rows: Sequence[Mapping[str, Any]], *, oat: bool) -> None:
    """ValueError at the first thing that would keep rows from being graded; cheap."""
    if oat and importlib.util.find_spec("verl") is None:
        raise ValueError("--add_oat_evaluate=True: must have verl installed, whose copy of PRM800K's grader it uses")
    for row in rows:
        for key in ("benchmark", "response", "answer", "finish_reason"):
            if not isinstance(row.get(key), str):
                raise ValueError(f"{key}={row.get(key)!r}: must be a text in every row")
        if _is_choice(row) and choice(row["answer"], _letters(row["answer"])) is None:
            raise ValueError(f"answer={row['answer']!r} of {row['benchmark']}: must be the letter of a choice")


def _letters(gold: str) -> str:
    return DIGITS if gold.strip().isdigit() else LETTERS


def _judge_choice(gold: str, answer: str) -> Reply:
    letter = choice(answer, _letters(gold))
    correct = letter is not None and letter == choice(gold, _letters(gold))
    return {"correct": correct, "extracted": letter, "vote": letter, "rule": "letter" if correct else None}


def _verdict(reply: Reply) -> Reply:
    kept = {key: reply[key] for key in ("correct", "extracted", "vote")}
    return kept | {"rule": reply.get("rule"), "timed_out": reply.get("timed_out", False)}


def _add_second(row: Row, reply: Reply, any_true: bool) -> None:
    """Put the second grader's verdict beside the first's."""
    row["math_verify_correct"] = row["correct"]
    row["oat_correct"] = None if _is_choice(row) else reply["correct"]
    row["correct"] = row["correct"] or bool(any_true and row["oat_correct"])


def _plain_forms(gold: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((clean(gold), gold)))


def _full_grader() -> Verifier:
    return Verifier(*FULL_GRADER)


def _second_grader() -> Verifier:
    return Verifier("PRM800K", (str(SECOND_GRADER),))


def _count(jobs: Sequence[Job], processes: int | None, worth_a_start: int) -> int:
    """Number of processes that this many jobs are worth."""
    return min(processes or len(os.sched_getaffinity(0)), -(-len(jobs) // worth_a_start))


def _judge(
    jobs: Sequence[Job], forms: Callable[[str], Sequence[str]], verifier: Callable[[], Verifier], count: int
) -> dict[Job, Reply]:
    """Every job's reply, of `count` verifiers; the same whatever their number.

    Answers that end in the same box go to one verifier, in order; where the box is what takes too long, the first two
    attempts end it for all of them.
    """
    groups: dict[str, list[Job]] = {}
    for gold, answer in jobs:
        groups.setdefault(next(boxed(answer), answer), []).append((gold, answer))
    replies: dict[Job, Reply] = {}
    with _started(count, verifier) as idle, tqdm(total=len(jobs), desc="judging", disable=None) as bar:

        def judge(box: str) -> None:
            mine = idle.get()
            try:
                replies.update(zip(groups[box], _replies(mine, groups[box], box, forms), strict=True))
            finally:
                idle.put(mine)
            bar.update(len(groups[box]))

        with ThreadPoolExecutor(max(count, 1)) as pool:
            list(pool.map(judge, groups))
    return replies


def _replies(
    verifier: Verifier, group: Sequence[Job], box: str, forms: Callable[[str], Sequence[str]]
) -> Iterator[Reply]:
    """Replies to answers that share what is in their last box; to one without a box, if `box` is the whole of it."""
    hopeless = False
    for gold, answer in group:
        reply: Reply | None = None
        if not hopeless:
            gold_forms = forms(gold)
            reply = verifier.judge(gold_forms, answer, WALL_S, CPU_S) if gold_forms else _NOTHING
            if reply is None:
                hopeless = box == answer or verifier.judge(gold_forms, rf"\boxed{{{box}}}", WALL_S, CPU_S) is None
        yield reply or {**_NOTHING, "timed_out": True}


@contextlib.contextmanager
def _started(count: int, verifier: Callable[[], Verifier]) -> Iterator[SimpleQueue[Verifier]]:
    """A queue of `count` verifiers whose processes are running; they end with the block."""
    verifiers = [verifier() for _ in range(count)]
    idle: SimpleQueue[Verifier] = SimpleQueue()
    try:
        with ThreadPoolExecutor(max(count, 1)) as pool:
            list(pool.map(Verifier.start, verifiers))
        for each in verifiers:
            idle.put(each)
        yield idle
    finally:
        for each in verifiers:
            each.close()
