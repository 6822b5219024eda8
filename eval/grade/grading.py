"""Verdicts on generated rows: Math-Verify and the full grader (docs/grading.md), letters for
multiple choice, and optionally Oat's, which then decides.

Mathematics is judged in separate processes, like the training reward (exgrpo.math_verify_reward):
an answer that hangs or crashes affects no other. The limit is on CPU time, so a busy machine does
not change verdicts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from exgrpo.gold_answers import latex_forms
from exgrpo.math_verify_reward import FULL_GRADER, MAX_CHARACTERS, THINK_END, Verifier, judged_part
from exgrpo_eval import benchmark_files
from exgrpo_eval.grade.extraction import DIGITS, LETTERS, boxed, choice
from exgrpo_eval.grade.oat_forms import last_box

CHOICE_BENCHMARKS = tuple(
    name for name, known in benchmark_files.known().items() if known.grader == "letter"
)
CPU_S = 2.0  # CPU time for one answer; the slowest of 6,345 real ones took 0.5
WALL_S = 60.0  # wall-clock time, for an answer that sleeps
WORTH_A_START = 100  # number of answers that take Math-Verify as long as starting another process
VERDICT_KEYS = (
    "correct",
    "extracted",
    "vote",
    "rule",
    "timed_out",
    "math_verify_correct",
    "oat_correct",
    "reward",
)
OAT_GRADER = Path(__file__).parents[1] / "oat_grader.py"

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
    """The rows in the same order, with their verdicts; verdicts of an earlier grading are dropped.

    Each gets ``correct``; ``extracted``, the answer as it was read, None if none was found;
    ``vote``, a key that equal answers share; ``rule``, by which the full grader accepts it
    ("math_verify", "intervals", "letter"), None if it does not; ``timed_out``, whether judging was
    abandoned. A truncated response is wrong and has no answer.

    Of a row with ``answers`` each of these counts, else ``answer``.

    A row with ``grader`` "letter" is multiple choice, as are the benchmarks of CHOICE_BENCHMARKS.

    Args:
        oat: ``correct`` is the verdict of Oat's grader on the last box, as in the released
            evaluation: multiple choice included, a truncated response judged like any other, and
                one without the </think> of `require_think` judged
            as a whole. ``oat_correct`` has it too, ``math_verify_correct`` what ``correct`` is
            without `oat`.
        any_true: with `oat`, ``correct`` is true if either of the two is.
        require_think: judge the text after the first </think>, as in training; an answer without
            </think> is wrong.
        processes: number of processes of each grader; default: the number of cores.

    Raises:
        ValueError: a multiple-choice answer that is not a letter, or a row without response.
        OSError: a grader's process does not start.
    """
    check(rows)
    jobs = [_jobs(row, require_think) for row in rows]
    mathematics = [
        job
        for row, each in zip(rows, jobs, strict=True)
        for job in each
        if job[1] and not _is_choice(row)
    ]
    distinct = list(dict.fromkeys(mathematics))
    first = _judge(distinct, latex_forms, _full_grader, _count(distinct, processes, WORTH_A_START))
    boxes = [_boxed_jobs(row, require_think) for row in rows] if oat else []
    in_boxes = list(dict.fromkeys(job for each in boxes for job in each))
    second = _judge(
        in_boxes, lambda gold: (gold,), _oat_grader, _count(in_boxes, processes, WORTH_A_START)
    )
    graded = []
    for row, each in zip(rows, jobs, strict=True):
        verdict = _judge_choice(*each[0]) if _is_choice(row) else _best(first, each)
        ungraded = {key: value for key, value in row.items() if key not in VERDICT_KEYS}
        graded.append(ungraded | _verdict(verdict))
    for row, each in zip(graded, boxes, strict=oat):
        _let_oat_decide(row, _best(second, each), any_true)
    return graded


def _is_choice(row: Mapping[str, Any]) -> bool:
    return row.get("grader") == "letter" or row["benchmark"] in CHOICE_BENCHMARKS


def _golds(row: Row) -> list[str]:
    return row.get("answers") or [row["answer"]]


def _best(replies: Mapping[Job, Reply], jobs: Sequence[Job]) -> Reply:
    """The reply for the first gold that the answer agrees with; for the first where with none."""
    found = [replies.get(job, _NOTHING) for job in jobs] or [_NOTHING]
    return max(found, key=lambda reply: (reply["correct"], reply.get("rule") is not None))


def _jobs(row: Row, require_think: bool) -> list[Job]:
    """Each gold answer with the part of the response that is judged, which is empty for a truncated
    response.
    """
    cut_off = row.get("finish_reason") == "length"
    part = "" if cut_off else judged_part(row["response"], require_think)
    return [(gold, part) for gold in _golds(row)]


def _boxed_jobs(row: Row, require_think: bool) -> list[Job]:
    """Each gold answer with the content of the last box, wherever it stands; none without a box, or
    if that is no answer.
    """
    response = row["response"]
    if require_think and THINK_END in response:
        response = response.split(THINK_END)[1]
    box = last_box(response)
    fits = box is not None and len(box) <= MAX_CHARACTERS
    return [(gold, box) for gold in _golds(row)] if fits else []


def check(rows: Sequence[Mapping[str, Any]]) -> None:
    """ValueError at the first problem that would prevent grading; cheap."""
    for row in rows:
        for key in ("benchmark", "response", "answer"):
            if not isinstance(row.get(key), str):
                raise ValueError(f"{key}={row.get(key)!r}: must be a text in every row")
        if not isinstance(row.get("finish_reason"), str | None):
            raise ValueError(
                f"finish_reason={row['finish_reason']!r}: must be a text, or null if it is "
                "not known"
            )
        if _is_choice(row) and choice(row["answer"], _letters(row["answer"])) is None:
            raise ValueError(
                f"answer={row['answer']!r} of {row['benchmark']}: must be the letter of a choice"
            )


def _letters(gold: str) -> str:
    return DIGITS if gold.strip().isdigit() else LETTERS


def _judge_choice(gold: str, answer: str) -> Reply:
    letter = choice(answer, _letters(gold))
    correct = letter is not None and letter == choice(gold, _letters(gold))
    return {
        "correct": correct,
        "extracted": letter,
        "vote": letter,
        "rule": "letter" if correct else None,
    }


def _verdict(reply: Reply) -> Reply:
    kept = {key: reply[key] for key in ("correct", "extracted", "vote")}
    return kept | {"rule": reply.get("rule"), "timed_out": reply.get("timed_out", False)}


def _let_oat_decide(row: Row, reply: Reply, any_true: bool) -> None:
    """Make Oat's the verdict of a row that Math-Verify has judged; the answer is its box, if it has
    one.
    """
    row["math_verify_correct"], row["oat_correct"] = row["correct"], reply["correct"]
    row["correct"] = reply["correct"] or (any_true and row["correct"])
    row["timed_out"] = row["timed_out"] or reply.get("timed_out", False)
    if reply["vote"] is not None:
        row.update(extracted=reply["extracted"], vote=reply["vote"])


def _full_grader() -> Verifier:
    return Verifier(*FULL_GRADER)


def _oat_grader() -> Verifier:
    return Verifier("Oat", (str(OAT_GRADER),))


def _count(jobs: Sequence[Job], processes: int | None, worth_a_start: int) -> int:
    """Number of processes that this many jobs are worth."""
    return min(processes or len(os.sched_getaffinity(0)), -(-len(jobs) // worth_a_start))


def _judge(
    jobs: Sequence[Job],
    forms: Callable[[str], Sequence[str]],
    verifier: Callable[[], Verifier],
    count: int,
) -> dict[Job, Reply]:
    """Every job's reply, from `count` verifiers; independent of their number.

    Answers that end in the same box go to one verifier, in order; if the box itself takes too long,
    the first two attempts decide for all of them.
    """
    groups: dict[str, list[Job]] = {}
    for gold, answer in jobs:
        groups.setdefault(next(boxed(answer), answer), []).append((gold, answer))
    replies: dict[Job, Reply] = {}
    with (
        _started(count, verifier) as idle,
        tqdm(total=len(jobs), desc="judging", disable=None) as bar,
    ):

        def judge(box: str) -> None:
            free = idle.get()
            try:
                replies.update(
                    zip(groups[box], _replies(free, groups[box], box, forms), strict=True)
                )
            finally:
                idle.put(free)
            bar.update(len(groups[box]))

        with ThreadPoolExecutor(max(count, 1)) as pool:
            list(pool.map(judge, groups))
    return replies


def _replies(
    verifier: Verifier, group: Sequence[Job], box: str, forms: Callable[[str], Sequence[str]]
) -> Iterator[Reply]:
    """Replies to answers with the same last box; for an answer without a box, `box` is the whole
    answer.
    """
    hopeless = False  # whether the box itself takes too long
    for number, (gold, answer) in enumerate(group, start=1):
        reply: Reply | None = None
        if not hopeless:
            gold_forms = forms(gold)
            reply = verifier.judge(gold_forms, answer, WALL_S, CPU_S) if gold_forms else _NOTHING
            if reply is None and number < len(
                group
            ):  # the last answer has none after it that this would spare
                hopeless = (
                    box == answer
                    or verifier.judge(gold_forms, rf"\boxed{{{box}}}", WALL_S, CPU_S) is None
                )
        yield reply or {**_NOTHING, "timed_out": True}


@contextlib.contextmanager
def _started(count: int, verifier: Callable[[], Verifier]) -> Iterator[SimpleQueue[Verifier]]:
    """A queue of `count` verifiers whose processes are running; they end with the block."""
    verifiers = [verifier() for _ in range(count)]
    idle: SimpleQueue[Verifier] = SimpleQueue()
    try:
        with ThreadPoolExecutor(max(count, 1)) as pool:
            list(pool.map(Verifier.start, verifiers))
        for started in verifiers:
            idle.put(started)
        yield idle
    finally:
        for started in verifiers:
            started.close()
