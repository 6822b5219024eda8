"""Grading under stress: hostile answers, limits, and what cannot be graded or started."""

import os
import resource
import sys
from pathlib import Path

import pytest
from eval_verdicts import row, verdicts

from exgrpo_eval.grade import grading
from exgrpo_eval.grade.grading import grade

TOWERS = [r"\boxed{10^{10^{10}}}", "9**9**9**9"]
HOSTILE = [
    *TOWERS,
    "9" * 1_000_000,
    r"\frac{" * 10_000 + "1" + "}" * 10_000,
    r"\boxed{" + r"\frac{" * 10_000 + "1" + "}{2}" * 10_000 + "}",
    r"\boxed{5",
    "",
    "\x00\x00\ud800",
    "答案是五 الجواب خمسة",
    r"$\int_0^1 \sum_{i" * 50,
    "__import__('os').system('exit 7')",
]


@pytest.mark.parametrize("oat", [False, True])
def test_hostile_answers_cost_themselves_alone_whatever_the_number_of_processes(oat, monkeypatch):
    monkeypatch.setattr(grading, "WORTH_A_START", 10)
    monkeypatch.setattr(grading, "CPU_S", 1.0)
    rows = []
    for number, hostile in enumerate(HOSTILE):
        rows += [row(hostile), row(rf"In case {number} \boxed{{{number}}}", str(number // 2 * 2))]
    graded = grade(rows, oat=oat, processes=2)
    assert [r["correct"] for r in graded[::2]] == [False] * len(HOSTILE)
    assert [r["correct"] for r in graded[1::2]] == [
        number % 2 == 0 for number in range(len(HOSTILE))
    ]
    assert [r["timed_out"] for r in graded] == [r["response"] in TOWERS for r in graded]
    assert [r["response"] for r in graded] == [r["response"] for r in rows]
    if not oat:
        assert grade(rows, processes=1) == graded  # one or two, in whatever order they finish


def test_the_limit_is_on_computing_and_not_on_the_clock():
    verifier = grading.Verifier()
    verifier.start()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert verifier.judge(("$5$",), TOWERS[0], timeout_s=60, cpu_s=0.5) is None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (
        after.ru_utime - before.ru_utime < 10
    )  # its start and half a second; without the limit, a minute
    verifier.close()


def test_a_box_that_hangs_is_tried_twice_and_a_thought_that_hangs_spoils_no_other(monkeypatch):
    asked = []

    class Fake(grading.Verifier):
        def start(self):
            pass

        def judge(self, gold, answer, timeout_s, cpu_s):
            asked.append(answer)
            return None if "hang" in answer else {"correct": True, "extracted": "", "vote": ""}

    monkeypatch.setattr(grading, "Verifier", Fake)
    assert verdicts([row(rf"{n} \boxed{{hang}}") for n in range(9)], "timed_out") == [True] * 9
    assert asked == [r"0 \boxed{hang}", r"\boxed{hang}"]
    asked.clear()
    assert verdicts([row(r"alone \boxed{hang}")], "timed_out") == [True]
    assert asked == [r"alone \boxed{hang}"]  # a second process would be started for nothing
    rows = [row(r"they hang \boxed{2}", "2"), row(r"so \boxed{2}", "2"), row(r"so \boxed{2}", "2")]
    assert verdicts(rows) == [False, True, True]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([row("x", "Paris", "arc_c")], "answer='Paris' of arc_c: must be the letter of a choice"),
        ([row("x") | {"response": None}], "response=None: must be a text"),
    ],
)
def test_rows_that_cannot_be_graded_are_refused_before_anything_starts(
    rows, complaint, monkeypatch
):
    monkeypatch.setattr(grading, "Verifier", None)
    with pytest.raises(ValueError, match=complaint):
        grade(rows)


def test_no_process_is_an_error_and_not_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(OSError):
        grade([row("5")])


def test_processes_end_with_the_grading():
    before = grading_workers()  # of tests that ran in this process
    grade([row(r"\boxed{5}")])
    assert grading_workers() <= before


def grading_workers():
    """Ids of this process's children that judge."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {
        child
        for child in children
        if b"exgrpo.full_grader" in Path(f"/proc/{child}/cmdline").read_bytes()
    }
