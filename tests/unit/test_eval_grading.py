"""Verdicts of evaluation: letters, golds of every benchmark, two graders, hostile answers, given verdicts."""

import json
import os
import resource
import sys
from pathlib import Path

import pytest

from eval import grading
from eval.extraction import DIGITS, boxed, choice
from eval.grading import grade
from exgrpo.gold_answers import clean, latex_forms

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="module", autouse=True)
def kept():
    """One process of the second grader for all tests: it imports verl, which takes seconds."""

    class Kept(grading.Verifier):
        def close(self):
            pass

    verifier = Kept("PRM800K", (str(grading.SECOND_GRADER),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading, "_second_grader", lambda: verifier)
        yield
    grading.Verifier.close(verifier)


def row(response, answer="5", benchmark="math", **more):
    return {"benchmark": benchmark, "response": response, "answer": answer, "finish_reason": "stop", **more}


def verdicts(rows, key="correct", **options):
    return [graded[key] for graded in grade(rows, **options)]


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"so \boxed{\text{B}}", "B"),
        (r"\boxed{\textbf{(C)}}", "C"),
        (r"\boxed{c}", "C"),
        (r"$\boxed{\mathrm{(j)}}$", "J"),
        (r"\boxed{B. a fish}", "B"),
        (r"\boxed{\text{(E) } 12}", "E"),
        (r"\boxed{A} no, \boxed{D}", "D"),
        (r"\boxed{D} which is \boxed{42}", "D"),  # the last box with a letter
        (r"\boxed{B} and not ANSWER: C", "B"),  # a box before words
        (r"\boxed{42} ANSWER: C", "C"),
        ("ANSWER: D", "D"),
        ("**Answer:** B", "B"),
        ("The answer is **B**.", "B"),
        (r"The answer is \textbf{G}", "G"),
        ("the correct answer is option C", "C"),
        ("answer is (a), not the others", "A"),
        ("The answer is A because it floats", "A"),
        ("ANSWER: B\n\nANSWER: I\n\nAs I said.", "I"),
        ("The answer is C, and the answer is A thing", "C"),
        ("Answer:\n\nC", "C"),
        ("(b).", "B"),
        ("The correct choice is B. It lasts.", "B"),
        ("C) continued experimentation.", "C"),
        ("A) one\nB) two", None),
        ("The answer is A planet", None),
        ("the answer is a planet", None),
        ("Answer: I think it is B", None),
        ("A stray A in prose. So I chose A", None),
        ("A. The first step", None),
        (r"\boxed{A cat}", None),
        (r"\boxed{A, C}", None),
        (r"\boxed{B", None),
        ("ANSWER: $LETTER", None),
        ("ANSWER: K", None),
        ("answer is AB", None),
        ("", None),
    ],
)
def test_the_letter_of_a_response(response, letter):
    assert choice(response) == letter


def test_numbered_choices():
    assert choice(r"\boxed{3}", DIGITS) == choice("the answer is 3", DIGITS) == "3"
    assert verdicts([row(r"\boxed{3}", "3", "arc_c"), row(r"\boxed{C}", "3", "arc_c")]) == [True, False]


def test_boxes_nest_and_unclosed_ones_are_none():
    assert list(boxed(r"\boxed{1} \boxed {\frac{1}{2}} \boxed{a\{b} \boxed{open")) == [r"a\{b", r"\frac{1}{2}", "1"]
    assert list(boxed(r"\boxed{" * 5_000)) == []


def test_multiple_choice_benchmarks_are_judged_by_their_letter():
    rows = [row("ANSWER: C", "C", name) for name in grading.CHOICE_BENCHMARKS]
    rows += [row(r"\boxed{J}", "J", "mmlu_pro"), row("ANSWER: C", "D", "gpqa"), row("C", "C", "gsm8k")]
    graded = grade(rows, oat=True)
    assert [r["correct"] for r in graded] == [True, True, True, True, False, False]
    assert [r["extracted"] for r in graded[:5]] == [r["vote"] for r in graded[:5]] == ["C", "C", "C", "J", "C"]
    assert [r["oat_correct"] for r in graded] == [None] * 5 + [True]  # a text to the second grader


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"\boxed{142}", "142.0"),  # AMC
        (r"\boxed{25}", "025"),  # AIME
        (r"\boxed{336^\circ}", r"336^\circ"),
        (r"\boxed{336}", r"336^\circ"),
        (r"\boxed{4.5\times 10^{33}}", "4.5e33"),  # Minerva
        (r"so $\boxed{4.5 \cdot 10^{33} \text{ erg/s}}$", "4.5e33"),
        (r"\boxed{4.5e33}", "4.5e33"),
        (r"\boxed{10^{-5}}", "1e-5"),
        (r"\boxed{0.00001}", "1e-5"),
        (r"\boxed{\arcsin(10/13)}", "np.arcsin(10/13)"),
        (r"\boxed{\arcsin\frac{10}{13}}", "np.arcsin(10/13)"),
        (r"\boxed{221, 8}", "$221,$8$"),  # Olympiad
        (r"\boxed{k=1}", "$k=1$"),
        (r"\boxed{-2,-1,1,2}", "-2,-1,1,2"),
        (r"\boxed{(-\infty,0)\cup\{1\}}", r"$(-\infty, 0) \cup\{1\}$."),
    ],
)
def test_golds_as_the_benchmarks_have_them(response, gold):
    assert verdicts([row(response, gold), row(r"\boxed{77}", gold)]) == [True, False]


@pytest.mark.parametrize(
    ("gold", "plain"),
    [
        ("142.0", "142"),
        ("142.5", "142.5"),
        ("025", "025"),
        ("4.5e33", r"4.5\times10^{33}"),
        ("1e-05", r"1\times10^{-5}"),
        ("2e+27", r"2\times10^{27}"),
        ("np.arcsin(10/13)", r"\arcsin(10/13)"),
        ("$0.5$", "0.5"),
        (r"\$5", r"\$5"),
        ("$A=90$, $B=9$", "$A=90$, $B=9$"),
        (r"x+$ $y", "x+ y"),
        ("e^{t}/3", "e^{t}/3"),
        (" $$ ", ""),
    ],
)
def test_clean_golds(gold, plain):
    assert clean(gold) == plain == clean(plain)


def test_forms_of_a_gold():
    assert latex_forms("$$") == latex_forms("") == ()
    assert latex_forms("0.5") == latex_forms("0.5 ") == ("$0.5$",)
    assert latex_forms("1e-5") == ("$1e-5$", r"$1\times10^{-5}$")
    assert latex_forms(r"1\times 10^{-5}")[-1] == "$1e-5$"


def test_the_rule_by_which_the_full_grader_takes_an_answer():
    rows = [row(r"\boxed{3 < x \le 4}", "(3,4]"), row(r"\boxed{5}"), row(r"\boxed{6}"), row("C", "C", "gpqa")]
    assert verdicts(rows, "rule") == ["intervals", "math_verify", None, "letter"]
    assert verdicts(rows) == [False, True, False, True]  # Math-Verify's verdicts stay


def test_what_is_cut_off_is_wrong_and_has_no_answer():
    graded = grade([row(r"\boxed{5}", finish_reason="length"), row(r"\boxed{5}")], oat=True)
    assert [r["correct"] for r in graded] == [r["oat_correct"] for r in graded] == [False, True]
    assert [r["extracted"] for r in graded] == [r["vote"] for r in graded] == [None, "5"]
    assert verdicts([row("ANSWER: C", "C", "gpqa", finish_reason="length")], "vote") == [None]


def test_what_counts_after_a_thought():
    rows = [row(r"\boxed{1} </think> \boxed{5}"), row(r"\boxed{5} </think> none"), row(r"\boxed{5}")]
    assert verdicts(rows, require_think=True) == [True, False, False]
    assert verdicts(rows) == [True, True, True]
    letters = [row("ANSWER: A </think> ANSWER: C", "C", "gpqa"), row("ANSWER: C", "C", "gpqa")]
    assert verdicts(letters, require_think=True) == [True, False]


def test_equal_answers_share_a_vote():
    rows = [
        row(rf"\boxed{{{answer}}}") for answer in (r"\frac12", "0.5", "1/2", "x+1", "1+x", r"\text{none}", "9" * 6_000)
    ]
    votes = verdicts(rows, "vote")
    assert votes[0] == votes[1] == votes[2] != votes[3] == votes[4] and None not in votes
    assert all(len(vote) <= 200 for vote in votes)
    assert verdicts(rows, "extracted")[3:5] == ["x+1", "1+x"]
    assert verdicts([row("The answer is 0.5"), row("I do not know")], "vote") == ["1/2", None]


def test_the_second_grader_and_either():
    rows = [row(r"\boxed{\frac{1}{2}}", "0.5"), row(r"\boxed{5}", "6")]
    rows += [row(r"\boxed{10{,}000}", "10000"), row(r"\boxed{7 3/4}", "7.75")]  # one knows the former, one the latter
    graded = grade(rows, oat=True)
    assert [r["math_verify_correct"] for r in graded] == [True, False, True, False]
    assert [r["oat_correct"] for r in graded] == [True, False, False, True]
    assert [r["correct"] for r in graded] == [True, False, True, False]
    either = grade(rows, oat=True, any_true=True)
    assert [r["correct"] for r in either] == [True, False, True, True]
    assert [r["math_verify_correct"] for r in either] == [True, False, True, False]
    assert "oat_correct" not in grade(either)[0] and verdicts(either) == [True, False, True, False]


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
    assert [r["correct"] for r in graded[1::2]] == [number % 2 == 0 for number in range(len(HOSTILE))]
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
    assert after.ru_utime - before.ru_utime < 10  # its start and half a second; without the limit, a minute
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
    rows = [row(r"they hang \boxed{2}", "2"), row(r"so \boxed{2}", "2"), row(r"so \boxed{2}", "2")]
    assert verdicts(rows) == [False, True, True]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([row("x", "Paris", "arc_c")], "answer='Paris' of arc_c: must be the letter of a choice"),
        ([row("x") | {"response": None}], "response=None: must be a text"),
    ],
)
def test_rows_that_cannot_be_graded_are_refused_before_anything_starts(rows, complaint, monkeypatch):
    monkeypatch.setattr(grading, "Verifier", None)
    with pytest.raises(ValueError, match=complaint):
        grade(rows)


def test_without_a_second_grader_there_is_one_line(monkeypatch):
    monkeypatch.setattr(grading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="--add_oat_evaluate=True: must have verl installed"):
        grade([row("5")], oat=True)


def test_no_process_is_an_error_and_not_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(OSError):
        grade([row("5")])


def test_processes_end_with_the_grading():
    grade([row(r"\boxed{5}")])
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert not any(b"grading.worker" in command for command in commands)


@pytest.mark.skipif(not (SHARED / "grading").is_dir(), reason="the grading data is not beside the checkout")
@pytest.mark.parametrize(
    ("name", "share"),
    [("qwen_math_cot_100", 799 / 800), ("math_verify_tests", 0.965), ("gsm8k_model_solutions", 0.995)],
)
def test_agreement_with_given_verdicts(name, share):
    given = [json.loads(line) for line in (SHARED / "grading" / f"{name}.jsonl").read_text().splitlines()]
    correct = verdicts([row(each["pred"], each["gold"]) for each in given], processes=2)
    agree = sum(verdict == each["expected"] for verdict, each in zip(correct, given, strict=True))
    assert agree / len(given) >= share, f"{agree} of {len(given)}"
